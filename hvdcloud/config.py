"""hvdcloud.yaml ⇄ models.

Flags beat environment (`HVDCLOUD_…`) beat file beat defaults. An unknown key, a wrong type or a value out of range is
refused with the place it came from and, for a typo, the key that was meant.

A nested key's environment variable joins its parts with two underscores: `HVDCLOUD_NODES=4`,
`HVDCLOUD_RUN__CONTROLLER=mpi`. Values are read as YAML, as they would be in the file.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from hvdcloud.errors import UsageError

CONFIG_FILE = "hvdcloud.yaml"
ENV_PREFIX = "HVDCLOUD_"
ENV_NOT_CONFIG = {
    "HVDCLOUD_STATE_DIR": "the folder with one folder per cluster: keys, pinned host keys, the journal",
    "HVDCLOUD_CHECKPOINT_DIR": "set in every rank: where the run's checkpoints belong",
    "HVDCLOUD_RUN": "set in every rank: the run's id",
    "HVDCLOUD_ADDRESS_URL": "a page that answers with this machine's public IPv4 address and nothing else, for "
    "gce.ssh.source: auto",
    "HVDCLOUD_GOOGLE_REGISTRIES": "more registries, separated by commas, that take a Google access token: mirrors and "
    "proxies",
    "HVDCLOUD_BUILDER": "what builds images: classic or buildkit; default: BuildKit where the engine and the docker "
    "command have it",
}
"""Variables that are read elsewhere and are not configuration keys, and what each is for."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def parse_duration(value: object) -> object:
    """Seconds from `90`, `60s`, `1h30m` or `0.5s`.

    Raises:
        ValueError: for text that is none of these (anything else is left to pydantic).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    text = value.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{value!r} is not a duration; write 60s, 30m, 12h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def _rfc1035(name: str) -> str:
    # Compute Engine takes 63 characters; 40 leave room for what is made of the name (NAME-NNN, firewall rules).
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise ValueError(
            f"{name!r} is not a cluster name: at most 40 characters a-z, 0-9 and '-', a letter first, no '-' last"
        )
    return name


def _bucket_url(url: str) -> str:
    if url.startswith("file://") and not re.fullmatch(r"file:///.+", url):
        raise ValueError(f"{url!r} needs an absolute folder: file:///DIR")
    if not re.fullmatch(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](/.*)?|file:///.+", url):
        raise ValueError(f"{url!r} is neither gs://BUCKET[/PREFIX] nor file:///DIR")
    return url.rstrip("/")


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    return name


def _shell_words(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} cannot be split into words: {error}") from error
    if not words:
        raise ValueError("the command is empty")
    return command


def _scalar_text(value: object) -> object:
    """YAML reads `EPOCHS: 3` as a number; an environment variable is text all the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_DURATION.pattern}$"}, {"type": "number"}]}),
]
ClusterName = Annotated[str, AfterValidator(_rfc1035)]
BucketUrl = Annotated[str, AfterValidator(_bucket_url)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_scalar_text)]
Command = Annotated[str, AfterValidator(_shell_words)]


class Section(BaseModel):
    """A section of hvdcloud.yaml: closed to unknown keys, never changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RemoteBuildConfig(Section):
    """How `build --remote` uses Cloud Build, in `gce.project`."""

    region: str = Field(default="global", min_length=1, description="where it builds: global, or e.g. us-central1")
    machine_type: Literal["E2_MEDIUM", "E2_STANDARD_2", "E2_HIGHCPU_8", "E2_HIGHCPU_32"] = Field(
        default="E2_HIGHCPU_8", description="what it builds on; compiling Horovod uses every core"
    )
    service_account: str | None = Field(
        default=None, min_length=1, description="e-mail address of the account that runs it; default: Cloud Build's own"
    )
    endpoint: str | None = Field(default=None, description="another Cloud Build API endpoint")


class ImageConfig(Section):
    """What the nodes' containers run."""

    base: str | None = Field(
        default=None,
        min_length=1,
        description="another image than hvdcloud's own to make the nodes' image of: any with Python >= 3.10 and the "
        "framework, on Debian or Ubuntu; Horovod is compiled in if it has none",
    )
    dockerfile: str | None = Field(
        default=None,
        min_length=1,
        description="your own Dockerfile on top of the image, in the project's folder: ARG BASE, FROM ${BASE}, more",
    )
    framework: Literal["torch", "tensorflow"] = Field(
        default="torch", description="the framework that Horovod is built against; image.base has to have it"
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="what the framework computes on")
    version: str | None = Field(
        default=None,
        min_length=1,
        description="the framework's version, one that an image can be built for; default: the first; not with base",
    )
    cuda_donor: str | None = Field(
        default=None,
        min_length=1,
        description="image whose /usr/local/cuda compiles Horovod for device cuda; default: one of NVIDIA's, or none "
        "where PyPI has the compiler",
    )
    repository: str | None = Field(
        default=None,
        min_length=1,
        description="where the image is pushed, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits; gce needs one",
    )
    requirements: str | None = Field(default="requirements.txt", description="pip requirements added to the image")
    find_links: str | None = Field(
        default=None, description="folder of local wheels for the build; default: what PIP_FIND_LINKS names"
    )
    ca_bundle: str | None = Field(
        default=None,
        description="CA certificates for the build; default: what SSL_CERT_FILE, PIP_CERT or REQUESTS_CA_BUNDLE names",
    )
    remote: RemoteBuildConfig = Field(default_factory=lambda: RemoteBuildConfig())

    @field_validator("version")
    @classmethod
    def _a_base_has_its_own_version(cls, version: str | None, info: ValidationInfo) -> str | None:
        if version is not None and info.data.get("base"):
            raise ValueError("image.base brings the framework, in its own version; take version or base out")
        return version


class ElasticConfig(Section):
    """How far a run may shrink and grow."""

    min: int = Field(default=1, ge=1, description="ranks below which the run waits")
    max: int = Field(ge=1, description="ranks at most")


class RunConfig(Section):
    """One training job."""

    command: Command = Field(default="python train.py", description="what every rank runs, in the project's folder")
    controller: Literal["gloo", "mpi"] = Field(default="gloo", description="what Horovod coordinates its ranks with")
    mpi_args: str = Field(default="", description="more arguments for mpirun, with controller: mpi")
    slots_per_node: int | None = Field(default=None, ge=1, description="ranks per node; default: its GPUs, else 1")
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, description="environment of every rank")
    secrets: list[EnvName] = Field(
        default_factory=list, description="names of variables whose values come from this machine's environment"
    )
    elastic: ElasticConfig | None = Field(default=None, description="let the run go on with fewer or more ranks")


class CheckpointsConfig(Section):
    """Where checkpoints go."""

    bucket: BucketUrl | None = Field(
        default=None,
        description="gs://BUCKET[/PREFIX] or file:///DIR; with provider local, null means a folder of this machine",
    )
    keep_every: Duration = Field(default=60.0, description="how often new files leave the node")


class LimitsConfig(Section):
    """What a cluster may cost at worst."""

    max_run_duration: Duration = Field(
        default=43200.0, description="after which Compute Engine itself deletes the nodes"
    )
    max_cost: float | None = Field(default=None, gt=0, description="dollars; shortens max_run_duration to fit")
    ask_above: float | None = Field(
        default=50.0, ge=0, description="dollars at worst above which up and launch ask first; null: never"
    )
    idle: Duration | None = Field(
        default=1800.0, description="without a run and without an SSH session, after which the nodes end; null: never"
    )


class GpuConfig(Section):
    """The accelerators of one node."""

    type: str = Field(default="nvidia-tesla-t4", min_length=1, description="Compute Engine's accelerator type")
    count: int = Field(default=1, ge=0, description="GPUs per node")


class SshConfig(Section):
    """Who may reach the nodes' sshd."""

    source: str = Field(default="auto", min_length=1, description="auto: the caller's own address /32 · a CIDR · iap")


class GceConfig(Section):
    """Compute Engine."""

    project: str | None = Field(default=None, description="default: the credentials' project")
    zones: list[str] = Field(
        default_factory=list, description="tried in order; empty: every zone that has the GPU, cheapest first"
    )
    machine_type: str = Field(default="n1-standard-8", description="machine type of every node")
    gpu: GpuConfig | None = Field(default_factory=lambda: GpuConfig(), description="GPUs of every node")
    spot: bool = Field(default=False, description="Spot VMs: cheaper, may be taken away")
    disk_gb: int = Field(default=100, ge=10, le=65536, description="boot disk")
    vm_image: Literal["cos", "dlvm"] = Field(default="cos", description="Container-Optimized OS or Deep Learning VM")
    network: str | None = Field(default=None, description="VPC network; a terraform output")
    subnetwork: str | None = Field(default=None, description="subnetwork; a terraform output")
    service_account: str | None = Field(default=None, description="the nodes' service account; a terraform output")
    ssh: SshConfig = Field(default_factory=lambda: SshConfig(), description="who may reach the nodes")
    endpoint: str | None = Field(
        default=None, description="another endpoint of Compute Engine's API, and of the APIs that doctor and prices ask"
    )

    @model_validator(mode="after")
    def _a_subnetwork_has_a_network(self) -> GceConfig:
        # The firewall rules are the network's, and its name cannot be told from the subnetwork's.
        if self.subnetwork and not self.network:
            raise ValueError("subnetwork is set without network; name the network that it is a part of")
        return self


class Config(Section):
    """One experiment, as hvdcloud.yaml describes it."""

    name: ClusterName = Field(description="the cluster's name: RFC 1035, at most 40 characters")
    provider: Literal["local", "gce"] = Field(
        "local", description="who makes nodes: local (containers on this machine) or gce (Compute Engine VMs)"
    )
    nodes: int = Field(default=2, ge=1, le=1000, description="how many nodes")
    image: ImageConfig = Field(default_factory=lambda: ImageConfig())
    run: RunConfig = Field(default_factory=lambda: RunConfig())
    checkpoints: CheckpointsConfig = Field(default_factory=lambda: CheckpointsConfig())
    limits: LimitsConfig = Field(default_factory=lambda: LimitsConfig())
    gce: GceConfig = Field(default_factory=lambda: GceConfig())

    _project_dir: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="after")
    def _secrets_are_not_in_the_file(self) -> Config:
        both = sorted(set(self.run.env) & set(self.run.secrets))
        if both:
            raise ValueError(f"run.env and run.secrets both name {both[0]}; a secret's value never stands in the file")
        return self

    @property
    def project_dir(self) -> Path:
        """The folder of hvdcloud.yaml, whose files a run sends to the nodes."""
        return self._project_dir


def load_config(
    path: Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration of one experiment.

    Args:
        path: hvdcloud.yaml; default: `hvdcloud.yaml` in the working folder, which may then be absent.
        flags: dotted key → value, from the command line; None means not given.
        environ: environment variables; default: this process's.

    Raises:
        UsageError: the file is missing or is not YAML, or a key or value is not allowed.
    """
    environ = os.environ if environ is None else environ
    file = path if path is not None else Path(CONFIG_FILE)
    tree: dict[str, Any] = {}
    lines: dict[tuple[str, ...], str] = {}
    if file.is_file():
        tree, lines = _read_yaml(file)
    elif path is not None:
        raise UsageError(f"{path} is not there", hint="hvdcloud init writes a project with an hvdcloud.yaml")
    for key, text in _from_environment(environ).items():
        _put(tree, key, text[1])
        lines[key] = text[0]
    for dotted, value in (flags or {}).items():
        if value is not None:
            key = tuple(dotted.split("."))
            _put(tree, key, value)
            lines[key] = f"--{key[-1].replace('_', '-')}"
    if "name" not in tree and not file.is_file():
        raise UsageError(
            f"there is no {CONFIG_FILE} in {Path.cwd()} and no --name",
            hint="hvdcloud init writes a project; -c names a file elsewhere; --name NAME does without one",
        )
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise _usage_error(error, file=file, lines=lines) from None
    config._project_dir = file.resolve().parent
    return config


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of hvdcloud.yaml."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def _read_yaml(file: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The file's mapping, and for every key the place where it stands."""
    lines: dict[tuple[str, ...], str] = {}

    def walk(node: yaml.Node, key: tuple[str, ...]) -> None:
        lines[key] = f"{file}:{node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for name, value in node.value:
                child = (*key, str(name.value))
                if child in seen:
                    raise UsageError(
                        f"{file}:{name.start_mark.line + 1}: {'.'.join(child)} stands twice", hint="keep one of them"
                    )
                seen.add(child)
                walk(value, child)
                lines[child] = f"{file}:{name.start_mark.line + 1}"
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, (*key, str(index)))

    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return {}, {}
        walk(root, ())
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{file}:{line}: not YAML: {error.problem}", hint=f"mend {file}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint=f"mend {file}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{file}:1: a mapping of keys is expected", hint="hvdcloud init writes one to start from")
    return tree, lines


def _from_environment(environ: Mapping[str, str]) -> dict[tuple[str, ...], tuple[str, object]]:
    found: dict[tuple[str, ...], tuple[str, object]] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in ENV_NOT_CONFIG:
            continue
        key = tuple(variable[len(ENV_PREFIX) :].lower().split("__"))
        text = environ[variable]
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        found[key] = (f"environment variable {variable}", value)
    return found


def _put(tree: dict[str, Any], key: tuple[str, ...], value: object) -> None:
    for part in key[:-1]:
        child = tree.get(part)
        if not isinstance(child, dict):
            child = tree[part] = {}
        tree = child
    tree[key[-1]] = value


def _section_at(key: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that holds the keys below `key`."""
    model: type[BaseModel] | None = Config
    for part in key:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            return None
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model


def _usage_error(error: ValidationError, *, file: Path, lines: Mapping[tuple[str, ...], str]) -> UsageError:
    """Every problem on a line of its own, with its place; the first one's remedy as the hint."""
    messages: list[str] = []
    hints: list[str] = []
    # A misspelt key often causes the other problems, so it comes first.
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        location = problem["loc"]
        key = tuple(str(part) for part in location if part != "[key]")
        dotted = ".".join(key)
        place = next((lines[key[:end]] for end in range(len(key), -1, -1) if key[:end] in lines), str(file))
        if problem["type"] == "extra_forbidden":
            section = _section_at(location[:-1])
            known = sorted(section.model_fields) if section else []
            close = difflib.get_close_matches(str(location[-1]).lower(), known, n=1, cutoff=0.6)
            messages.append(f"{place}: unknown key {dotted}")
            hints.append(f"did you mean {'.'.join((*key[:-1], close[0]))}?" if close else f"known: {', '.join(known)}")
        elif problem["type"] == "missing":
            messages.append(f"{place}: {dotted} is missing")
            hints.append(f"add {dotted}, or give it as --{key[-1].replace('_', '-')}")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            got = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
            messages.append(f"{place}: {dotted}: {text}{got}" if dotted else f"{place}: {text}")
            hints.append(f"mend {dotted or 'it'}; `hvdcloud config schema` has every key")
    others = [f"{message}; {hint}" for message, hint in zip(messages[1:], hints[1:], strict=True)]
    return UsageError(messages[0], hint=hints[0], details="\n".join(others))
