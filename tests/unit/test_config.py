"""hvdcloud.yaml: what is accepted, and what is said of what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hvdcloud.config.file import load
from hvdcloud.config.model import Config
from hvdcloud.errors import ExitCode, UsageError
from hvdcloud.image.plan.steps import plan_image
from tests.support.configs import load_config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hvdcloud.yaml"


def refusal(file: Path, text: str, environ: dict[str, str] | None = None) -> UsageError:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(file, environ=environ or {})
    assert caught.value.code is ExitCode.USAGE
    return caught.value


def test_defaults_are_those_of_the_design(file: Path) -> None:
    file.write_text("name: digits\n")
    config = load_config(file, environ={})
    assert (config.provider, config.nodes, config.run.command) == ("local", 2, "python train.py")
    assert config.checkpoints.keep_every == 60.0
    limits = config.limits
    assert (limits.max_run_duration, limits.max_cost, limits.ask_above, limits.idle) == (12 * 3600, None, 50.0, 1800.0)
    assert config.project_dir == file.parent


def test_flags_beat_environment_beats_file_beats_defaults(file: Path) -> None:
    file.write_text("name: digits\nnodes: 3\n")
    assert load_config(file, environ={}).nodes == 3
    assert load_config(file, environ={"HVDCLOUD_NODES": "4"}).nodes == 4
    assert load_config(file, environ={"HVDCLOUD_NODES": "4"}, flags={"nodes": 5}).nodes == 5
    assert load_config(file, environ={"HVDCLOUD_RUN__CONTROLLER": "mpi"}).run.controller == "mpi"
    assert load_config(file, environ={}, flags={"checkpoints.bucket": "file:///x"}).checkpoints.bucket == "file:///x"


def test_a_typo_is_refused_with_its_line_and_the_key_that_was_meant(file: Path) -> None:
    error = refusal(file, "name: digits\n\nnodse: 2\n")
    assert error.message == f"{file}:3: unknown key nodse"
    assert error.hint == "did you mean nodes?"
    error = refusal(file, "name: digits\nimage:\n  requirments: r.txt\n")
    assert error.message == f"{file}:3: unknown key image.requirments"
    assert error.hint == "did you mean image.requirements?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nodes: two", "nodes: it should be a valid integer, unable to parse string as an integer (got two)"),
        ("limits: {max_cost: inf}", "limits.max_cost: it should be a finite number (got inf)"),
        # A number in base 60, in YAML 1.1.
        ("limits: {idle: 12:30:00}", "limits.idle: '12:30:00' is not a duration"),
        ("gce: {zones: [us-east1-b, us-central1]}", "gce.zones.1: 'us-central1' is not a zone, such as us-central1-b"),
        ("nodes: 0", "nodes: it should be greater than or equal to 1 (got 0)"),
        ("run: {slots_per_node: -1}", "run.slots_per_node: it should be greater than or equal to 1 (got -1)"),
        ("run: {command: ''}", "run.command: the command is empty"),
        ("run: {command: 'python \"x'}", "run.command: 'python \"x' cannot be split"),
        ("run: {retry: 101}", "run.retry: it should be less than or equal to 100 (got 101)"),
        ("run: {retry: {max: 3}}", "run.retry: it should be a valid integer"),
        ("run: {controller: nccl}", "run.controller: it should be 'gloo' or 'mpi' (got nccl)"),
        ("run: {env: {'A B': x}}", "run.env.A B: write the name of an environment variable"),
        ("checkpoints: {keep_every: 5 parsecs}", "checkpoints.keep_every: '5 parsecs' is not a duration"),
        ("checkpoints: {bucket: s3://x}", "checkpoints.bucket: 's3://x' is neither gs://BUCKET"),
        ("checkpoints: {bucket: 'file://relative'}", "needs an absolute folder"),
        ("limits: {max_cost: -1}", "limits.max_cost: it should be greater than 0 (got -1)"),
        ("image: cpu", "image: it should be a valid dictionary or instance of ImageConfig (got cpu)"),
        (f"limits: {{idle: {10**400}}}", "is not a duration; write 60s, 30m, 12h or 1h30m"),
        ("run: {env: {A: ~}}", "run.env.A: it should be a valid string"),
        ("gce: {zones: us-east1-b}", "gce.zones: it should be a valid list (got us-east1-b)"),
        ("gce: {disk_gb: 100000}", "gce.disk_gb: it should be less than or equal to 65536 (got 100000)"),
    ],
)
def test_a_bad_value_is_refused_with_its_line(file: Path, line: str, said: str) -> None:
    error = refusal(file, f"name: digits\n{line}\n")
    assert error.message.startswith(f"{file}:2: ")
    assert said in error.message


@pytest.mark.parametrize("name", ["Digits", "1digits", "digits-", "a" * 41, "di_gits", ""])
def test_a_name_that_no_cloud_would_take_is_refused(file: Path, name: str) -> None:
    assert "is not a cluster name" in refusal(file, f"name: '{name}'\n").message


def test_every_problem_is_reported_at_once(file: Path) -> None:
    error = refusal(file, "name: digits\nnodes: 0\nnodse: 1\nprovider: aws\n")
    assert "nodse" in error.message
    assert "nodes" in error.details
    assert "provider" in error.details


def test_what_is_not_yaml_is_refused_with_its_line(file: Path) -> None:
    assert f"{file}:2: not YAML" in refusal(file, "name: digits\nnodes: }\n").message
    assert refusal(file, "name: digits\nssh: {hosts: [a\n").message.endswith("but got the end of the file")
    assert "a mapping of keys is expected" in refusal(file, "- name\n").message
    assert "nodes appears twice" in refusal(file, "name: digits\nnodes: 1\nnodes: 2\n").message


def test_a_bad_environment_variable_is_named(file: Path) -> None:
    error = refusal(file, "name: digits\n", {"HVDCLOUD_NODES": "none"})
    assert error.message.startswith("environment variable HVDCLOUD_NODES: nodes:")
    error = refusal(file, "name: digits\n", {"HVDCLOUD_NODE": "3"})
    assert error.message == "environment variable HVDCLOUD_NODE: unknown key node"


def test_a_missing_file_is_refused_unless_a_name_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no hvdcloud\.yaml"):
        load_config(environ={})
    with pytest.raises(UsageError, match=r"other\.yaml does not exist"):
        load_config(Path("other.yaml"), environ={})
    assert load_config(environ={}, flags={"name": "digits"}).name == "digits"


def test_a_secret_is_never_in_the_file(file: Path) -> None:
    error = refusal(file, "name: digits\nrun: {env: {TOKEN: x}, secrets: [TOKEN]}\n")
    assert "run.env and run.secrets both name TOKEN" in error.message


TYPED = (
    "3", "0.5", "0123", "3.10", "1_000", "0x1F", "0o17", "0b101", "1234.e+7", "1e400", ".inf", "+1", "-0", "9" * 30,
    "true", "yes", "off", "No", "y", "12:30:00", "190:20:30", "2024-01-02", "2024-01-02 03:04:05Z", "2024-13-45",
    "=", "1,000", "a'b", "C:\\x", "10.0.0.7",
)  # fmt: skip
"""Values without quotes that YAML 1.1 takes for something else, or may seem to."""


def test_a_value_of_run_env_is_the_text_that_was_typed(file: Path) -> None:
    values = "".join(f"    V{number}: {value}\n" for number, value in enumerate(TYPED))
    file.write_text(f"name: digits\nrun:\n  env:\n{values}    NO: NO\n    on: 'null'\n    LONG: |\n      a\n      b\n")
    env = dict(load_config(file, environ={}).run.env)
    assert [env.pop(f"V{number}") for number in range(len(TYPED))] == [*TYPED]
    assert env == {"NO": "NO", "on": "null", "LONG": "a\nb\n"}


def test_what_config_show_prints_is_read_back_as_the_same_text(file: Path) -> None:
    values = dict(zip((f"V{number}" for number in range(len(TYPED))), TYPED, strict=True))
    shown = load(environ={}, flags={"name": "digits", "run.env": values, "gce.project": "0123", "ssh.hosts": ["10.2"]})
    texts = {each.key: each.text for each in shown.settings()}
    assert texts["ssh.hosts"] == "[{host: '10.2'}]"
    file.write_text("".join(f"{each}: {texts[each]}\n" for each in ("name", "nodes")))
    with file.open("a") as written:
        written.write(f"run: {{env: {texts['run.env']}}}\ngce: {{project: {texts['gce.project']}}}\n")
        written.write(f"ssh: {{hosts: {texts['ssh.hosts']}}}\nlimits: {{idle: {texts['limits.idle']}}}\n")
    again = load_config(file, environ={})
    assert (again.run.env, again.gce.project, again.ssh) == (values, "0123", shown.config.ssh)
    assert yaml.safe_load(file.read_text())["run"]["env"] == values  # As other programs read it, too.


@pytest.mark.parametrize(
    ("written", "key", "text"),
    [
        ("name: yes", "name", "yes"),
        ('name: "null"', "name", "null"),
        ("gce: {project: 0123}", "gce.project", "0123"),
        ("gce: {gpu: {type: 1e5}}", "gce.gpu.type", "1e5"),
        ("gce: {network: ~}", "gce.network", None),
        ("image: {version: 2.10}", "image.version", "2.10"),
        ("run: {command: 12:30}", "run.command", "12:30"),
        ("run: {secrets: [NO, ON, Y]}", "run.secrets", ["NO", "ON", "Y"]),
        ("notify: NO", "notify", "NO"),
        # Other keys read their own kind of value from text, in quotes too.
        ("nodes: '2'", "nodes", 2),
        ("nodes: 1_000", "nodes", 1000),
        ("limits: {max_cost: 10.50}", "limits.max_cost", 10.5),
        ("limits: {idle: ~}", "limits.idle", None),
        # An anchor is read by each key that has it.
        ("nodes: &n 2\nrun: {env: {WORLD: *n}}", "run.env", {"WORLD": "2"}),
    ],
)
def test_text_is_what_was_typed_for_every_key_that_is_text(file: Path, written: str, key: str, text: object) -> None:
    file.write_text(f"{written}\n" if written.startswith("name") else f"name: digits\n{written}\n")
    assert {each.key: each.value for each in load(file, environ={}).settings()}[key] == text


@pytest.mark.parametrize(
    ("text", "provisioning"),
    [
        ("", "standard"),
        ("run: {elastic: {min: 1}}", "spot"),
        ("run: {elastic: {}}\ngce: {provisioning: standard}", "standard"),
        ("run: {elastic: {}}\ngce: {provisioning: null}", "spot"),
        ("run: {retry: 1}", "spot"),
        ("run: {retry: 3}\ngce: {provisioning: standard}", "standard"),
        ("run: {elastic: {}}\ngce: {provisioning: flex-start}", "flex-start"),
        ("run: {retry: 3}\ngce: {reservation: mine}", "reservation"),
    ],
)
def test_runs_that_survive_preemptions_have_spot_vms_unless_told_otherwise(
    file: Path, text: str, provisioning: str
) -> None:
    file.write_text(f"name: digits\n{text}\n")
    assert load_config(file, environ={}).gce.provisioning == provisioning
    # It may have been read before.
    assert Config.model_validate(load_config(file, environ={}).model_dump()).gce.provisioning == provisioning


@pytest.mark.parametrize(
    ("gce", "said"),
    [
        ("{reservation: mine, provisioning: spot}", "reservation is set, and provisioning is spot"),
        ("{provisioning: reservation}", "write which one as reservation: NAME"),
        ("{reservation: zones/a/mine}", "projects/PROJECT/reservations/NAME"),
        ("{spot: all}", "unknown key gce.spot"),
    ],
)
def test_a_way_to_get_machines_that_cannot_be_is_refused(file: Path, gce: str, said: str) -> None:
    error = refusal(file, f"name: digits\ngce: {gce}\n")
    assert said in f"{error.message} {error.details} {error.hint}"


@pytest.mark.parametrize(
    ("text", "machine_type", "gpu"),
    [
        ("", "n1-standard-8", None),
        ("image: {device: cuda}", "g2-standard-8", ("nvidia-l4", 1)),
        ("image: {device: cuda}\ngce: {gpu: null}", "n1-standard-8", None),
        ("image: {device: cuda}\ngce: {gpu: {count: 4}}", "g2-standard-48", ("nvidia-l4", 4)),
        ("gce: {gpu: {type: nvidia-tesla-v100, count: 1}}", "n1-standard-8", ("nvidia-tesla-v100", 1)),
        ("image: {device: cuda}\ngce: {machine_type: a2-highgpu-1g}", "a2-highgpu-1g", None),
        # As these files were read before NVIDIA L4 was the default.
        ("image: {device: cuda}\ngce: {machine_type: n1-standard-4}", "n1-standard-4", ("nvidia-tesla-t4", 1)),
        ("gce: {machine_type: n1-standard-8, gpu: {count: 2}}", "n1-standard-8", ("nvidia-tesla-t4", 2)),
    ],
)
def test_the_nodes_have_the_gpus_that_the_image_computes_on(
    file: Path, text: str, machine_type: str, gpu: tuple[str, int] | None
) -> None:
    file.write_text(f"name: digits\n{text}\n")
    config = load_config(file, environ={})
    for gce in (config.gce, Config.model_validate(config.model_dump()).gce):  # It may have been read before.
        assert (gce.machine_type, (gce.gpu.type, gce.gpu.count) if gce.gpu else None) == (machine_type, gpu)


@pytest.mark.parametrize(
    ("there", "text", "meant"),
    [
        (True, "", "requirements.txt"),
        (False, "", None),
        (True, "image: {requirements: null}", None),
        (False, "image: {requirements: requirements.txt}", "requirements.txt"),
    ],
)
def test_requirements_are_those_of_the_usual_file_if_it_is_there(
    file: Path, there: bool, text: str, meant: str | None
) -> None:
    if there:
        (file.parent / "requirements.txt").write_text("scikit-learn\n")
    file.write_text(f"name: digits\n{text}\n")
    config = load_config(file, environ={})
    assert config.image.requirements == meant
    if not there and meant:
        with pytest.raises(UsageError, match=r"does not exist, but image\.requirements names it"):
            plan_image(config.image, project_dir=config.project_dir)
    else:
        plan_image(config.image, project_dir=config.project_dir)


def test_the_value_of_each_setting_is_json(file: Path) -> None:
    file.write_text("name: digits\nprovider: ssh\nssh: {hosts: [gpu1, {host: gpu2, gpus: 2}]}\n")
    values = {each.key: each.value for each in load(file, environ={}).settings()}
    assert json.loads(json.dumps(values))["ssh.hosts"] == [{"host": "gpu1"}, {"host": "gpu2", "gpus": 2}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: 3\nrun: {elastic: {min: 4}}", "nodes is 3; with run.elastic it is from 4 (min) to 3 (max)"),
        ("nodes: 3\nrun: {elastic: {max: 2}}", "nodes is 3; with run.elastic it is from 1 (min) to 2 (max)"),
        ("nodes: 3\nrun: {elastic: {min: 0}}", "run.elastic.min"),
        ("nodes: 3\nrun: {elastic: {}, controller: mpi}", "run.elastic needs run.controller: gloo"),
    ],
)
def test_a_run_that_cannot_be_is_refused(file: Path, text: str, said: str) -> None:
    assert said in refusal(file, f"name: digits\n{text}\n").message


@pytest.mark.parametrize(
    ("elastic", "least", "most"), [("{}", 1, 3), ("{min: 2}", 2, 3), ("{max: 8}", 1, 8), ("{min: 3, max: 3}", 3, 3)]
)
def test_an_elastic_run_goes_down_to_one_node_and_not_beyond_the_cluster_by_default(
    file: Path, elastic: str, least: int, most: int
) -> None:
    file.write_text(f"name: digits\nnodes: 3\nrun: {{elastic: {elastic}}}\n")
    config = load_config(file, environ={})
    assert config.run.elastic is not None
    assert (config.run.elastic.min, config.most_nodes) == (least, most)
