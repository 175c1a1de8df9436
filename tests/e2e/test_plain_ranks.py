"""A run is Horovod's own: ranks are what horovodrun alone starts, and what starts them is horovodrun."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.config.file import ENV_NOT_CONFIG
from tests.support.harness import Project, brought_up, project_in

pytestmark = pytest.mark.engine

FINDS = """
import gc, json, os, sys
import horovod.torch, torch

def named(each):
    return f"{type(each).__module__}.{getattr(each, '__qualname__', type(each).__qualname__)}"

print("found", json.dumps({
    "meta_path": [named(each) for each in sys.meta_path],
    "path": sys.path,
    "flags": list(sys.flags),
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)],
    "hooks": [named(sys.excepthook), named(sys.displayhook), str(sys.gettrace()), sys.getswitchinterval()],
    "modules": sorted(sys.modules),
    "environment": dict(os.environ),
}), flush=True)
"""
# What the driver of an elastic run does with what comes from the network; the last answer is of a worker that is none.
DRIVER = """
import base64, os, pickle, urllib.error, urllib.request
from horovod.runner.common.util import codec, network
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.elastic.worker import WorkerNotificationClient, WorkerNotificationManager, WorkerNotificationService
from horovod.runner.http.http_client import put_data_into_kvstore
from horovod.runner.http.http_server import RendezvousServer


class Attack:
    def __reduce__(self):
        return os.system, ("echo attacked",)


class Driver:
    def register_worker_server(self, host, local_rank, addresses, key):
        self.known = addresses, key


class Listener:
    def on_hosts_updated(self, timestamp, result):
        print("told", timestamp, int(result))


class Liar(WorkerNotificationService):
    def _handle(self, request, client):
        if isinstance(request, network.PingRequest):
            return super()._handle(request, client)
        return Attack()


driver, server, worker = Driver(), RendezvousServer(), WorkerNotificationManager()
port = server.start(create_rendezvous_handler(driver))
server.init([])
worker.register_listener(Listener())
worker.init("127.0.0.1", port, "lo", "here", 0)
print("registered")
WorkerNotificationClient(*driver.known, verbose=0).notify_hosts_updated(7, 2)
try:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/worker_addresses/here:0")
except urllib.error.HTTPError as error:
    print("key", error.code)
try:
    put_data_into_kvstore("127.0.0.1", port, "worker_addresses", "here:0", Attack())
except Exception as error:
    print("refused an address:", type(error).__name__)
liar = Liar(b"key", "lo", None)
try:
    WorkerNotificationClient(liar.addresses(), b"key", verbose=0).notify_hosts_updated(7, 2)
except pickle.UnpicklingError as error:
    print("refused an answer:", error)
os._exit(0)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("plain"), "t-plain")
    project.write("train.py", FINDS)
    project.write("driver.py", DRIVER)
    with brought_up(project, engine):
        yield project


def by_hand(project: Project, engine: Any, *command: str) -> str:
    """What a command says that is typed on the head."""
    head = engine.containers.get(f"{project.name}-0")
    done = head.exec_run(["sh", "-c", f"{shlex.join(command)} 2>&1"], workdir="/workspace")
    said: str = done.output.decode(errors="replace")
    assert done.exit_code == 0, said
    return said


def found(out: str) -> list[dict[str, Any]]:
    """What ranks 0 and 1 found, by hvdcloud's prefixes or Horovod's."""
    lines = re.findall(r"^\[(\d)\](?:<stdout>:| )found (.*)$", out, re.MULTILINE)
    return [json.loads(text) for _, text in sorted(lines)]


def test_a_rank_is_what_horovodrun_alone_starts(project: Project, engine: Any) -> None:
    ours = found(project.hvdcloud("run").out)
    hosts = ",".join(f"{project.name}-{index}:1" for index in range(2))
    typed = ["horovodrun", "--gloo", "-np", "2", "-H", hosts, "-p", "2222", "--network-interfaces", "eth0"]
    plain = found(by_hand(project, engine, *typed, "python", "train.py"))
    assert len(ours) == len(plain) == 2
    for rank in range(2):
        here, there = ours[rank].pop("environment"), plain[rank].pop("environment")
        assert ours[rank] == plain[rank]
        assert {name for name in here if name.startswith("HVDCLOUD_")} <= ENV_NOT_CONFIG.keys()
        # What Horovod's options set, and which host of the two it is.
        horovod = {"HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"}
        host = {"HOSTNAME", "SSH_CLIENT", "SSH_CONNECTION"} if rank else set()
        different = {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
        different = {name for name in different if not name.startswith("HVDCLOUD_")}
        assert different - horovod - host == {"OMP_NUM_THREADS"}


def test_the_driver_of_an_elastic_run_calls_nothing_that_comes_from_the_network(project: Project, engine: Any) -> None:
    out = by_hand(project, engine, "python", "-u", "driver.py").splitlines()
    assert "attacked" not in out
    wanted = ["registered", "told 7 2", "key 404", "refused an address: RemoteDisconnected"]
    assert [line for line in out if line.startswith(("registered", "told", "key", "refused"))] == [
        *wanted,
        "refused an answer: posix.system is no message of a worker",
    ]
