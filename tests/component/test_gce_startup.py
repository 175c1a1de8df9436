"""The startup script: its text, and what it does where curl, docker and the driver's installer are stand-ins."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.google import grants
from hvdcloud.providers.engine.requests import CAPABILITIES, TMPFS
from hvdcloud.providers.gce.plan import startup

IMAGE = "us-central1-docker.pkg.dev/p/hvdcloud/digits@sha256:" + "a" * 64
KEY = 'ssh-ed25519 AAAA "quoted" $HOME `id` laptop'

# Each stand-in appends its arguments to calls; what it answers lies in files of the same folder.
STAND_INS = {
    "curl": """
        url=${!#} data=
        while (($#)); do [[ $1 == --data-binary ]] && data=$2; shift; done
        case $url in
        */instances/digits-0)
            [[ ! -e $FAKE/cut ]] || { rm "$FAKE/cut"; echo 'curl: (56) connection reset' >&2; exit 56; }
            cat >"$FAKE/header"
            [[ -e $FAKE/may-delete ]] || { cat "$FAKE/refusal"; echo 'curl: (22) 403' >&2; exit 22; } ;;
        */project/project-id) printf p-1 ;;
        */instance/zone) printf projects/42/zones/us-central1-a ;;
        */guest-attributes/hvdcloud/status)
            printf '%s\\n' "$data" >>"$FAKE/statuses" ;;
        */service-accounts/default/token) echo '{"access_token":"ya29.secret","token_type":"Bearer"}' ;;
        */attributes/hvdcloud-authorized-key) cat "$FAKE/key" ;;
        */instance/attributes/) cat "$FAKE/attributes" ;;
        */attributes/hvdcloud-bucket) printf gs://bucket/runs ;;
        */attributes/hvdcloud-idle) cat "$FAKE/idle" ;;
        */attributes/hvdcloud-compute-endpoint) printf http://127.0.0.1:9024 ;;
        */instance/name) cat "$FAKE/name" ;;
        *) echo "curl: (6) no $url" >&2; exit 6 ;;
        esac""",
    "docker": """
        case "$1 $2" in
        "container inspect")
            [[ $* == *-f* ]] || exec test -e "$FAKE/container"
            exec bash "$FAKE/runs" "$(grep -c '^docker container inspect -f' "$FAKE/calls")" ;;
        "login "*) cat >>"$FAKE/password" ;;
        "pull "*) n=$(grep -c '^docker pull' "$FAKE/calls"); bash "$FAKE/pull" "$n" ;;
        "run "*) touch "$FAKE/container"; env | grep ^HVDCLOUD_ >"$FAKE/environment"; echo 0123456789ab ;;
        "kill "*) echo 'echo false' >"$FAKE/runs" ;;
        "wait "*) cat "$FAKE/exit-code" ;;
        "logs "*) cat "$FAKE/logs" ;;
        esac""",
    "cos-extensions": '[[ ! -e $FAKE/no-driver ]] || { cat "$FAKE/no-driver" >&2; exit 3; }',
    "iptables": '[[ " $* " != *" -C "* ]]',
    "sleep": "exec /bin/sleep 0.02",
    **dict.fromkeys(("mount", "shutdown", "systemctl", "nvidia-smi"), ":"),
}

REFUSED = "Required 'compute.instances.delete' permission for 'projects/p-1/zones/us-central1-a/instances/digits-0'"
PULLED = "Digest: sha256:aa\nStatus: Downloaded newer image\n"


@dataclass
class Vm:
    """A folder of stand-ins in front of PATH, and the script's own folders moved below it."""

    folder: Path

    def put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def program(self, name: str, body: str) -> None:
        """A stand-in for a program."""
        file = self.folder / "bin" / name
        file.write_text(f'#!/bin/bash\nprintf "%s\\n" "{name} $*" >>"$FAKE/calls"\n{body}\n')
        file.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "FAKE": str(self.folder)}

    def script(self, **options: Any) -> str:
        replace = options.pop("replace", {})
        script = startup.render(**{"image": IMAGE, "registry_login": True, "gpu": True, **options})
        moved = ("/var/lib/hvdcloud", "/dev/nvidia")
        for old, new in {**{each: f"{self.folder}{each}" for each in moved}, **replace}.items():
            script = script.replace(old, new)
        return script

    def boot(self, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(self.script(**options))

    def run(self, script: str, *, limit: float = 300) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", script]
        return subprocess.run(command, env=self.environment, text=True, capture_output=True, timeout=limit, check=False)

    @property
    def statuses(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "statuses").read_text().splitlines()]

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def called(self, prefix: str) -> list[str]:
        return [call for call in self.calls if call.startswith(prefix)]


def new_vm(folder: Path) -> Vm:
    (folder / "bin").mkdir()
    vm = Vm(folder)
    for name, body in STAND_INS.items():
        vm.program(name, body)
    (folder / "dev").mkdir()
    for device in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (folder / "dev" / device).touch()
    vm.put("key", KEY)
    vm.put("name", "digits-0")
    vm.put("attributes", "hvdcloud-authorized-key\nhvdcloud-bucket\nhvdcloud-compute-endpoint\nhvdcloud-idle\n")
    vm.put("idle", "1800")
    vm.put("runs", "echo false")
    vm.put("exit-code", "0\n")
    vm.put("logs", 'hvdcloud-status {"status": "starting"}\n')
    vm.put("pull", f"cat <<'END'\n{PULLED}END\n")
    vm.put("refusal", json.dumps({"error": {"code": 403, "message": REFUSED, "errors": []}}, indent=1))
    return vm


@pytest.fixture
def vm(tmp_path: Path) -> Vm:
    return new_vm(tmp_path)


Booted = tuple[Vm, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Booted:
    """A VM with the usual options that has started, and what its script printed."""
    vm = new_vm(tmp_path_factory.mktemp("booted"))
    return vm, vm.boot(driver="R580")


def test_no_value_can_break_out_of_its_quotes(vm: Vm) -> None:
    image = f"registry/x'; touch {vm.folder}/broken; '$(touch {vm.folder}/broken)"
    vm.boot(image=image, registry_login=False)
    assert not (vm.folder / "broken").exists()
    assert vm.called("docker pull") == [f"docker pull {image}"]


def test_it_reports_every_step_and_powers_off_when_the_container_ends_well(booted: Booted) -> None:
    vm, done = booted
    assert done.returncode == 0, done.stdout + done.stderr
    told = [status["status"] for status in vm.statuses]
    # The driver is told where it takes longer than the image.
    assert [word for word in told if word != "driver"] == ["host", "login", "pulling", "starting"]
    assert vm.called("cos-extensions") == ["cos-extensions install gpu -- -version=R580"]
    assert vm.called("shutdown") == ["shutdown -h now"]
    assert all(line.startswith("hvdcloud: ") for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_the_container_gets_host_network_devices_and_its_words_from_the_metadata(booted: Booted) -> None:
    vm, _ = booted
    [run] = vm.called("docker run")
    assert "--network host --ipc host --stop-timeout 30 " in run
    assert " --security-opt no-new-privileges --cap-drop ALL " in run
    # As a container of this machine's engine.
    assert f" --cap-drop ALL {' '.join(f'--cap-add {each}' for each in CAPABILITIES)} --tmpfs " in run
    assert " ".join(f"--tmpfs {path}:{options}" for path, options in TMPFS.items()) in run
    assert "--ulimit memlock=-1 --ulimit stack=67108864" in run
    dev = f"{vm.folder}/dev"
    devices = " ".join(f"--device {dev}/{name}" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"))
    assert f"{devices} --volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro" in run
    assert run.endswith(
        "-e HVDCLOUD_AUTHORIZED_KEY -e HVDCLOUD_NODE -e HVDCLOUD_METADATA -e HVDCLOUD_IDLE -e HVDCLOUD_DATA_SETS "
        f"-e HVDCLOUD_BUCKET -e HVDCLOUD_STORAGE_ENDPOINT -e HVDCLOUD_SETTLED_AT {IMAGE}"
    )
    assert {
        f"HVDCLOUD_AUTHORIZED_KEY={KEY}", "HVDCLOUD_NODE=digits-0", "HVDCLOUD_METADATA=http://169.254.169.254",
        "HVDCLOUD_IDLE=1800", "HVDCLOUD_DATA_SETS=", "HVDCLOUD_BUCKET=gs://bucket/runs", "HVDCLOUD_STORAGE_ENDPOINT=",
        "HVDCLOUD_SETTLED_AT=0",
    } == set((vm.folder / "environment").read_text().splitlines())  # fmt: skip


def test_what_the_node_program_says_of_its_end_is_on_the_serial_port(vm: Vm) -> None:
    said = "hvdcloud: idle for 30 min: no run, no SSH session; switching off"
    vm.put("logs", f'hvdcloud-status {{"status": "ready"}}\nServer listening on 0.0.0.0\n{said}\n')
    lines = vm.boot().stdout.splitlines()
    assert said in lines
    assert not any("listening" in line for line in lines)


def test_container_optimized_os_lets_the_other_nodes_in(booted: Booted) -> None:
    assert [call for call in booted[0].called("iptables") if " -I INPUT " in call] == [
        "iptables -w 30 -I INPUT -p tcp -j ACCEPT",
        "iptables -w 30 -I INPUT -p udp -j ACCEPT",
    ]


def test_the_token_is_on_no_command_line_and_not_in_the_serial_log(booted: Booted) -> None:
    vm, done = booted
    assert (vm.folder / "password").read_text().strip() == "ya29.secret"
    assert vm.called("docker login") == [
        "docker login -u oauth2accesstoken --password-stdin https://us-central1-docker.pkg.dev"
    ]
    assert "ya29" not in "".join(vm.calls) + done.stdout + done.stderr


@pytest.mark.parametrize(
    "error",
    [
        "Error response from daemon: manifest for x not found: manifest unknown",
        "denied: Permission artifactregistry.repositories.downloadArtifacts denied on resource",
        "failed to register layer: write /x: no space left on device",
    ],
)
def test_a_pull_that_cannot_succeed_is_not_tried_again(vm: Vm, error: str) -> None:
    vm.put("pull", f'echo "0123456789ab: Pulling fs layer"; echo "{error}" >&2; exit 1\n')
    done = vm.boot()
    assert done.returncode == 1
    assert len(vm.called("docker pull")) == 1
    assert vm.statuses[-1]["status"] == "failed"
    assert vm.statuses[-1]["step"] == "pull"
    assert error in vm.statuses[-1]["error"]
    assert vm.called("docker run") == []


def test_a_pull_that_is_not_allowed_yet_is_tried_again_while_what_setup_granted_is_young(
    vm: Vm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path))
    (tmp_path / "_setup" / "lab").mkdir(parents=True)
    grants.remember_grants("lab")
    vm.put("pull", f"(($1 > 1)) || {{ echo 'denied: no permission' >&2; exit 1; }}\ncat <<'END'\n{PULLED}END\n")
    assert vm.boot(settled_at=grants.settled_at("lab")).returncode == 0
    assert [status["status"] for status in vm.statuses].count("not allowed to pull yet") == 1
    assert len(vm.called("docker pull")) == 2


def test_a_failure_is_reported_as_json_whatever_it_says(vm: Vm) -> None:
    vm.put("no-driver", 'a "quoted" \\ path\n\ttab, bell \a, caf\u00e9, $HOME & `id` {"x": 1}\nlast line\n')
    done = vm.boot()
    assert done.returncode == 1
    assert vm.statuses[-1] == {
        "status": "failed",
        "step": "driver",
        "error": 'a "quoted" \\ path\n tab, bell ?, caf??, $HOME & `id` {"x": 1}\nlast line',
    }
    assert len(vm.called("cos-extensions")) == 3
    assert len([status for status in vm.statuses if status["status"] == "failed"]) == 1
    assert 'hvdcloud: failed: step driver: a "quoted"' in done.stdout


def test_what_hangs_is_given_up_with_its_name(vm: Vm) -> None:
    (vm.folder / "bin" / "cos-extensions").write_text("#!/bin/bash\nexec /bin/sleep 60\n")
    vm.boot(replace={"retry 3 limited 900": "retry 1 limited 1"})
    assert vm.statuses[-1]["error"] == "not done within 1 s: cos-extensions install gpu -- -version=default"


def test_a_container_that_never_was_ready_leaves_the_vm_to_be_looked_at(vm: Vm) -> None:
    vm.put("exit-code", "1\n")
    vm.put("logs", 'hvdcloud-status {"status": "failed", "step": "sshd", "error": "no"}\n')
    vm.put("attributes", "hvdcloud-authorized-key\n")
    assert vm.boot().returncode == 1
    assert vm.called("shutdown") == []
    assert vm.statuses[-1] == {"status": "failed", "step": "sshd", "error": "no"}, "its own word says why"


def test_a_container_that_was_ready_and_fails_powers_the_vm_off(vm: Vm) -> None:
    vm.put("exit-code", "137\n")
    vm.put("logs", 'hvdcloud-status {"status": "ready", "host_key": "ssh-ed25519 A"}\nkilled\n')
    assert vm.boot().returncode == 0
    assert vm.called("shutdown") == ["shutdown -h now"]
    assert vm.statuses[-1]["status"] == "failed"


NOBODY_CAME = "hvdcloud: the start failed and nobody deleted this VM for {}"
SWITCHED_OFF = [
    f"hvdcloud: this VM cannot delete itself: {REFUSED}",
    "hvdcloud: switching off; its disk costs money until hvdcloud down; hvdcloud setup allows nodes to delete "
    "themselves",
]


FAILURES = pytest.mark.parametrize(("file", "text"), [("no-driver", "no\n"), ("exit-code", "1\n")])


@FAILURES
def test_a_vm_whose_start_failed_is_switched_off_where_nobody_deletes_it(vm: Vm, file: str, text: str) -> None:
    vm.put(file, text)
    done = vm.boot()
    assert done.returncode == 1
    assert done.stdout.splitlines()[-3:] == [NOBODY_CAME.format("30 min"), *SWITCHED_OFF]
    waited = vm.calls.index("sleep 1800")
    assert vm.calls[waited - 1].startswith("curl"), "the failure is told before the wait"
    after = [call for call in vm.calls[waited:] if not call.startswith(("docker", "curl", "systemctl"))]
    assert after == ["sleep 1800", "shutdown -h now"]
    assert vm.statuses[-1]["status"] == "failed"


ENDED = 'hvdcloud-status {{"status": "ready"}}\nhvdcloud-status {{"status": "ended", "complete": {}}}\n'
DELETED = (
    "curl -sS --fail-with-body -X DELETE --connect-timeout 5 --max-time 20 --retry 5 --retry-max-time 60 -H @- "
    "http://127.0.0.1:9024/compute/v1/projects/p-1/zones/us-central1-a/instances/digits-0"
)


def test_a_vm_whose_checkpoints_are_all_in_the_bucket_deletes_itself(vm: Vm) -> None:
    vm.put("may-delete", "")
    vm.put("logs", ENDED.format("true"))
    done = vm.boot()
    (deletion,) = vm.called("curl -sS --fail-with-body")
    assert deletion == DELETED
    assert (vm.folder / "header").read_text() == "Authorization: Bearer ya29.secret\n"
    assert "ya29" not in "".join(vm.calls) + done.stdout + done.stderr
    # Where the deletion does not happen, switching off is what is left.
    assert vm.calls[-2:] == ["sleep 300", "shutdown -h now"]
    assert done.stdout.splitlines()[-2] == "hvdcloud: deleting this VM"


def test_a_deletion_whose_answer_was_lost_is_asked_for_again(vm: Vm) -> None:
    vm.put("may-delete", "")
    vm.put("cut", "")
    vm.put("logs", ENDED.format("true"))
    assert vm.boot().stdout.splitlines()[-2] == "hvdcloud: deleting this VM"
    assert len(vm.called("curl -sS --fail-with-body")) == 2


@FAILURES
def test_a_vm_whose_start_failed_deletes_itself_where_it_may(vm: Vm, file: str, text: str) -> None:
    vm.put(file, text)
    vm.put("may-delete", "")
    vm.boot()
    assert len(vm.called("curl -sS --fail-with-body")) == 1
    assert vm.calls.index("sleep 1800") < vm.calls.index("sleep 300")


@pytest.mark.parametrize(
    "logs",
    [
        ENDED.format("false"),
        'hvdcloud-status {"status": "ready"}\nkilled\n',
        ENDED.format("true") + 'hvdcloud-status {"status": "starting"}\n',
    ],
    ids=["some are missing", "it did not say", "it was started again"],
)
def test_a_disk_that_may_hold_checkpoints_is_kept(vm: Vm, logs: str) -> None:
    vm.put("may-delete", "")
    vm.put("logs", logs)
    done = vm.boot()
    assert not vm.called("curl -sS --fail-with-body")
    assert vm.calls[-1] == "shutdown -h now"
    assert done.stdout.splitlines()[-1] == (
        "hvdcloud: its disk may hold checkpoints that are nowhere else: switching off; the disk costs money until "
        "hvdcloud down"
    )


def test_a_disk_whose_docker_does_not_answer_is_kept(vm: Vm) -> None:
    vm.put("may-delete", "")
    vm.put("logs", ENDED.format("true"))
    broken = STAND_INS["docker"].replace('"logs "*)', '"logs hvdcloud"*) exit 1 ;; "logs "*)')
    vm.program("docker", broken)
    vm.boot()
    assert not vm.called("curl -sS --fail-with-body")
    assert vm.calls[-1] == "shutdown -h now"


def test_a_vm_that_a_person_stops_is_left_as_it_is(vm: Vm) -> None:
    vm.put("may-delete", "")
    vm.put("logs", ENDED.format("true"))
    vm.program("systemctl", "[[ $1 != is-system-running ]] || { echo stopping; exit 1; }")
    assert vm.boot().returncode == 0
    assert not vm.called("curl -sS --fail-with-body")
    assert not vm.called("shutdown")


def test_driver_and_image_are_fetched_side_by_side(vm: Vm) -> None:
    """Each ends only after the other has begun."""
    wait_for = 'touch "$FAKE/{}"; until [[ -e $FAKE/{} ]]; do /bin/sleep 0.01; done'
    vm.program("cos-extensions", wait_for.format("installing", "pulling"))
    vm.put("pull", wait_for.format("pulling", "installing"))
    assert vm.boot().returncode == 0
    assert {"status": "pulling", "percent": 0, "beside": "driver"} in vm.statuses


def test_a_container_that_neither_gets_ready_nor_ends_is_a_failed_start(vm: Vm) -> None:
    vm.put("runs", "echo true")
    assert vm.boot(replace={"READY_SECONDS=600": "READY_SECONDS=1"}).returncode == 1
    assert vm.statuses[-1] == {"status": "failed", "step": "container", "error": "not ready within 1 s"}
    assert vm.called("docker kill") == ["docker kill hvdcloud"]
    assert vm.called("docker wait") == []
    assert vm.calls[-1] == "shutdown -h now"


def shut_down(vm: Vm, *, preempted: bool = False, limit: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the shutdown script where Docker does not answer."""
    vm.program("curl", f"[[ ${{!#}} == */instance/preempted ]] && echo {'TRUE' if preempted else 'FALSE'}")
    vm.program("docker", "exit 1")
    script = startup.render_shutdown().replace("/proc/", f"{vm.folder}/proc/")
    return vm.run(script.replace("HOME=/var/lib/hvdcloud", f"HOME={vm.folder}"), limit=limit)


@pytest.mark.parametrize(("preempted", "why"), [(True, "preempted"), (False, "shut down")])
def test_at_the_end_the_containers_first_process_is_told_without_docker(vm: Vm, preempted: bool, why: str) -> None:
    first = subprocess.Popen(["bash", "-c", "sleep 60 & wait"])
    program = vm.folder / f"proc/{first.pid}/cmdline"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"python3\0-m\0hvdcloud.node\0entrypoint\0")
    (vm.folder / "container-pid").write_text(f"{first.pid}\n")
    vm.program("sleep", f"rm -f {program}")
    done = shut_down(vm, preempted=preempted)
    assert done.returncode == 0
    assert first.wait(timeout=300) == -signal.SIGTERM
    said = f"hvdcloud: the VM is being {why}: its container is ended, which uploads its checkpoints first"
    assert done.stdout.splitlines()[0] == said
    assert re.search(r"^hvdcloud: the container ended \d+ s after the VM's end began$", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_at_the_end_a_vm_whose_container_is_gone_loses_no_time(vm: Vm) -> None:
    done = shut_down(vm, limit=10)
    assert done.returncode == 0
    assert done.stdout == "hvdcloud: the VM is being shut down: its container has ended already\n"
    assert not vm.called("docker")
