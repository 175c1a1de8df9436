"""Machines behind the Compute Engine emulator: real boots of real scripts, against a host that only keeps records."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud.providers.gce.plan import startup
from tests.standins.compute import Emulator
from tests.standins.compute.machines import LABEL, Machines
from tests.standins.compute.machines_metadata import Guest, MetadataServer
from tests.standins.registry import free_port, running_registry
from tests.support.compute_clients import Plain
from tests.support.harness import until
from tests.support.machines_lab import BOOT_SECONDS, PROJECT, ZONE, Lab, Records, instance_resource

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def lab(engine: Any, port: int) -> Iterator[Lab]:
    """An emulator's worth of machines; when it is closed, nothing with its label may be left."""
    with Machines(loopback_ports=[port]) as machines:
        yield Lab(machines)
    assert left(engine, machines.network) == []


def left(engine: Any, network: str) -> list[str]:
    filters = {"label": f"{LABEL}={network}"}
    return [
        *(found.name for found in engine.containers.list(ignore_removed=True, all=True, filters=filters)),
        *(found.name for found in engine.networks.list(filters=filters)),
        *(found.name for found in engine.volumes.list(filters=filters)),
    ]


@pytest.fixture
def pushed_image(engine: Any, tmp_path: Path, port: int, lab: Lab) -> Iterator[str]:
    """REPOSITORY@DIGEST of a small image with bash and perl, at the registry only."""
    with running_registry(tmp_path, {}, addresses=("127.0.0.1", lab.machines.gateway), port=port) as host:
        repository = f"{host}/hvdcloud/small"
        engine.images.get("debian:bookworm-slim").tag(repository, tag="1")
        engine.images.push(repository, tag="1")
        digests = engine.images.get(f"{repository}:1").attrs["RepoDigests"]
        engine.images.remove(f"{repository}:1")
        yield next(digest for digest in digests if digest.startswith(repository))


SERVE = r"""#!/bin/bash
set -euo pipefail
metadata() { curl -sSf -H 'Metadata-Flavor: Google' "$@"; }
instance=http://metadata.google.internal/computeMetadata/v1/instance
put() { metadata -X PUT --data-binary "$1" "$instance/guest-attributes/hvdcloud/status"; }
put pulling
image=$(metadata "$instance/attributes/hvdcloud-image")
docker pull -q "$image"
cos-extensions install gpu
iptables -w -A INPUT -p tcp -j ACCEPT
docker run -d --name hvdcloud --network host --ipc host --shm-size 8g --ulimit memlock=-1 \
    --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm \
    -v /var/lib/nvidia/bin:/usr/local/nvidia/bin:ro -v /var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro \
    "$image" perl -e '
        use IO::Socket;
        my $metadata = IO::Socket::INET->new("metadata.google.internal:80") or die "metadata: $@";
        print $metadata "GET /computeMetadata/v1/instance/name HTTP/1.0\r\nMetadata-Flavor: Google\r\n\r\n";
        my $name = join("", <$metadata>) =~ /\r\n\r\n(.*)/s ? $1 : die "no name";
        my $server = IO::Socket::INET->new(LocalPort => 2222, Listen => 5, ReuseAddr => 1) or die "listen: $@";
        while (my $peer = $server->accept) { print $peer "this is $name\n"; close $peer }'
put ready
"""


def call(address: str, port: int = 2222) -> str:
    """What the server there says to this machine, `refused` if the connection is not answered."""
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            return connection.makefile().read().strip()
    except OSError:
        return "refused"


def call_from(engine: Any, lab: Lab, name: str, address: str) -> str:
    """What the server there says to that machine."""
    (container,) = engine.containers.list(
        ignore_removed=True, filters={"label": f"{LABEL}={lab.machines.network}", "name": f"{name}$"}
    )
    command = f"timeout 2 bash -c 'cat </dev/tcp/{address}/2222'"
    code, output = container.exec_run(["bash", "-c", command])
    return output.decode().strip() if code == 0 else "refused"


def ingress(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "name": name,
        "network": "https://www.googleapis.com/compute/v1/projects/p-1/global/networks/default",
        "direction": "INGRESS",
        "priority": 1000,
        "allowed": [{"IPProtocol": "tcp", "ports": ["2222"]}],
        **properties,
    }


def test_two_machines_pull_run_and_reach_each_other_where_a_rule_lets_them(
    lab: Lab, engine: Any, pushed_image: str
) -> None:
    for name in ("vm-0", "vm-1"):
        lab.boot(name, SERVE, gpus=1, tags=("mesh",), hvdcloud_image=pushed_image)
    for name in ("vm-0", "vm-1"):
        console = lab.wait_for("startup-script exit status 0", on=name)
        assert "google_metadata_script_runner: startup-script: Finished installing GPU drivers" in console
        assert lab.status(name) == "ready"
    address, _ = lab.machines.address(lab.records.instances["vm-0"])
    internal = f"vm-0.{ZONE}.c.{PROJECT}.internal"

    def reached() -> tuple[str, str]:
        return call(address), call_from(engine, lab, "vm-1", internal)

    assert reached() == ("refused", "refused")
    mesh = ingress("mesh", sourceTags=["mesh"], targetTags=["mesh"])
    lab.machines.firewalls_changed([mesh])
    until(
        lambda: call_from(engine, lab, "vm-1", internal) == "this is vm-0", seconds=BOOT_SECONDS, what="vm-0's server"
    )
    assert reached() == ("refused", "this is vm-0")
    lab.machines.firewalls_changed([mesh, ingress("laptop", sourceRanges=[f"{lab.machines.gateway}/32"])])
    assert reached() == ("this is vm-0", "this is vm-0")
    lab.machines.firewalls_changed([])
    assert reached() == ("refused", "refused")


def test_a_script_that_shuts_down_turns_the_machine_off_and_delete_leaves_nothing(lab: Lab, engine: Any) -> None:
    instance = lab.boot("vm-0", "#!/bin/sh\necho working\nshutdown -h now\n")
    until(lambda: lab.records.off == ["vm-0"], seconds=BOOT_SECONDS, what="the machine to be off")
    assert "startup-script: working" in lab.records.console["vm-0"]
    lab.machines.delete(instance)
    assert left(engine, lab.machines.network) == [lab.machines.network]


def test_a_vm_whose_start_failed_while_the_laptop_is_dead_switches_itself_off(lab: Lab) -> None:
    script = startup.render(image="no image", registry_login=False, gpu=False)
    # Where nothing answers: for Google's own name, which no machine finds, it would wait half a minute.
    lab.boot("vm-0", script, hvdcloud_idle="2", hvdcloud_compute_endpoint="http://127.0.0.1:9")
    lab.wait_for("hvdcloud: the start failed and nobody deleted this VM for 2 s", on="vm-0")
    until(lambda: lab.records.off == ["vm-0"], seconds=BOOT_SECONDS, what="the machine to be off")
    assert json.loads(lab.status("vm-0") or "")["step"] == "pull"


def test_a_stop_runs_the_shutdown_script_and_is_no_power_off_of_its_own(lab: Lab) -> None:
    # The notice may come before the script asks: then there is no change to wait for.
    waits = "curl -s -H 'Metadata-Flavor: Google' \"$M/instance/preempted?wait_for_change=true&timeout_sec=1\""
    instance = lab.boot(
        "vm-0",
        "#!/bin/bash\nM=http://metadata.google.internal/computeMetadata/v1\necho ready\n"
        f'until [ "$({waits})" = TRUE ]; do :; done\necho preempted=TRUE\n',
        shutdown_script="#!/bin/bash\necho flushing\n",
    )
    lab.wait_for("startup-script: ready", on="vm-0")
    lab.records.spot_notice.add("vm-0")
    lab.wait_for("startup-script: preempted=TRUE", on="vm-0")
    lab.machines.stop(instance, graceful_seconds=BOOT_SECONDS)
    console = lab.wait_for("init: power down", on="vm-0")
    assert "shutdown-script: flushing" in console
    lab.machines.start(instance, lab.records)
    until(
        lambda: lab.records.console["vm-0"].count("startup-script: ready") == 2,
        seconds=BOOT_SECONDS,
        what="a second boot",
    )
    lab.machines.stop(instance, graceful_seconds=0)
    lab.machines.delete(instance)
    assert lab.records.off == []


def test_a_machine_that_is_taken_away_has_a_notice_and_runs_its_shutdown_script(engine: Any) -> None:
    """A Spot VM behind the whole emulator: what happens in it between the notice and its end, and what is left."""
    startup_script = (
        "#!/bin/bash\n"
        "P=http://metadata.google.internal/computeMetadata/v1/instance/preempted\n"
        "get() { curl -s -D /run/headers -H 'Metadata-Flavor: Google' \"$P$1\"; }\n"
        "first=$(get); etag=$(sed -n 's/^ETag: \\([0-9a-f]*\\).*/\\1/p' /run/headers)\n"
        'echo "preempted $first"\n'
        'echo "preempted $(get "?wait_for_change=true&last_etag=$etag")"\n'
    )
    shutdown_script = "#!/bin/bash\necho begins; timeout 1 sleep 60; echo ends with $?\n"
    with Emulator(backing=Machines()) as emulator:
        items = {"startup-script": startup_script, "shutdown-script": shutdown_script}
        scheduling = {
            "provisioningModel": "SPOT",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "instanceTerminationAction": "DELETE",
        }
        metadata = {"items": [{"key": key, "value": value} for key, value in items.items()]}
        with Plain(emulator) as plain:
            plain.up("vm-0", guestAccelerators=[], scheduling=scheduling, metadata=metadata)
        with emulator.state.lock:
            vm = emulator.state.vm(ZONE, "vm-0")

        def console() -> str:
            return vm.serial.decode(errors="replace")

        until(lambda: "startup-script: preempted FALSE" in console(), seconds=BOOT_SECONDS, what="the first answer")
        emulator.preempt(ZONE, "vm-0")
        until(lambda: emulator.state.left() == [], seconds=BOOT_SECONDS, what="the VM and its disk to be gone")
        log = console()
        assert "startup-script: preempted TRUE" in log
        # `timeout` ended its program: what the machine ignores in its last seconds, the script does not.
        assert log.index("shutdown-script: begins") < log.index("shutdown-script: ends with 124")
        assert log.index("shutdown-script: ends with 124") < log.index("init: power down")
        (operation,) = [
            each for each in emulator.state.all_operations() if each["operationType"] == "compute.instances.preempted"
        ]
        assert (operation["status"], operation["user"]) == ("DONE", "system@google.com")


# -- the metadata server ---------------------------------------------------------------------------------------------


@pytest.fixture
def metadata() -> Iterator[tuple[str, Records]]:
    """HOST:PORT, where this machine is `vm-0`."""
    records = Records()
    records.instances["vm-0"] = instance_resource("vm-0", {"colour": "red", "enable-guest-attributes": "TRUE"})
    server = MetadataServer("127.0.0.1", lambda address: Guest("vm-0", address, records))
    yield f"127.0.0.1:{server.port}", records
    server.close()


def get(host: str, path: str, **options: Any) -> requests.Response:
    headers = {"Metadata-Flavor": "Google"} | options.pop("headers", {})
    return requests.get(f"http://{host}/computeMetadata/v1/{path}", headers=headers, timeout=10, **options)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("instance/name", "vm-0"),
        ("instance/id", "1000"),
        ("instance/zone", "projects/42/zones/us-central1-a"),
        ("instance/hostname", "vm-0.us-central1-a.c.p-1.internal"),
        ("instance/machine-type", "projects/42/machineTypes/n1-standard-8"),
        ("instance/attributes/colour", "red"),
        ("instance/attributes/", "colour\nenable-guest-attributes\n"),
        ("instance/preempted", "FALSE"),
        ("instance/network-interfaces/0/ip", "127.0.0.1"),
        ("instance/service-accounts/default/email", "node@p-1.iam.gserviceaccount.com"),
        ("instance/service-accounts/default/scopes", "https://www.googleapis.com/auth/cloud-platform"),
        ("project/project-id", "p-1"),
        ("project/numeric-project-id", "42"),
    ],
)
def test_a_value_of_the_metadata_server(metadata: tuple[str, Records], path: str, value: str) -> None:
    answer = get(metadata[0], path)
    assert (answer.status_code, answer.text) == (200, value)
    assert answer.headers["Metadata-Flavor"] == "Google"


def test_the_metadata_server_refuses(metadata: tuple[str, Records]) -> None:
    host, records = metadata
    plain = requests.get(f"http://{host}/computeMetadata/v1/instance/name", timeout=10)
    assert (plain.status_code, plain.headers["Metadata-Flavor"]) == (403, "Google")
    assert get(host, "instance/name", headers={"X-Forwarded-For": "1.2.3.4"}).status_code == 403
    assert get(host, "instance/attributes/none").status_code == 404
    records.instances["vm-0"] = instance_resource("vm-0", {})
    assert get(host, "instance/guest-attributes/").status_code == 403
    put = requests.put(
        f"http://{host}/computeMetadata/v1/instance/guest-attributes/a/b",
        data=b"1",
        headers={"Metadata-Flavor": "Google"},
        timeout=10,
    )
    assert put.status_code == 403


def test_guest_attributes_are_written_read_and_deleted(metadata: tuple[str, Records]) -> None:
    host, _ = metadata
    url = f"http://{host}/computeMetadata/v1/instance/guest-attributes/hvdcloud/status"
    headers = {"Metadata-Flavor": "Google"}
    assert requests.put(url, data=b'{"status": "ready"}', headers=headers, timeout=10).status_code == 200
    assert get(host, "instance/guest-attributes/hvdcloud/status").json() == {"status": "ready"}
    assert get(host, "instance/guest-attributes/?recursive=true").json() == {
        "hvdcloud": {"status": '{"status": "ready"}'}
    }
    assert requests.delete(url, headers=headers, timeout=10).status_code == 200
    assert get(host, "instance/guest-attributes/hvdcloud/status").status_code == 404


def test_a_wait_for_change_ends_with_the_change(metadata: tuple[str, Records]) -> None:
    host, records = metadata
    known = get(host, "instance/preempted").headers["ETag"]
    path = f"instance/preempted?wait_for_change=true&last_etag={known}"
    assert get(host, f"{path}&timeout_sec=0.3").text == "FALSE"
    threading.Timer(0.3, records.spot_notice.add, ["vm-0"]).start()
    assert get(host, path).text == "TRUE"


def test_googles_own_library_gets_its_token_there(metadata: tuple[str, Records]) -> None:
    program = (
        "import google.auth, google.auth.transport.requests\n"
        "credentials, project = google.auth.default()\n"
        "credentials.refresh(google.auth.transport.requests.Request())\n"
        "print(project, credentials.service_account_email, credentials.token)\n"
    )
    # Nothing else that the library would find first.
    environ = {"PATH": "", "HOME": "/nonexistent", "GCE_METADATA_HOST": metadata[0], "GCE_METADATA_IP": metadata[0]}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["p-1", "node@p-1.iam.gserviceaccount.com", "token-of-vm-0"], done.stderr


# -- firewall rules --------------------------------------------------------------------------------------------------
