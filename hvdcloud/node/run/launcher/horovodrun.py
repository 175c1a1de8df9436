"""horovodrun, less the part of its start that only repeats what the image's build has proven, and less trusting.

Before it starts a rank, Horovod 0.28.1's launcher asks whether the controller was built in
(horovod/runner/launch.py, run_controller). The answer comes from a new process that imports the framework
(horovod/common/util.py, gloo_built and mpi_built): seconds on a small machine, for every run. The image's build fails
if the configuration's controller does not work, so here the answer is yes. Nor does it first try ssh to every host: the
supervisor's connections are what shows whether a node can be reached.

It starts each rank's command itself. Horovod starts a Python process for each, which starts the command and ends it
where horovodrun is killed (horovod/runner/common/util/safe_shell_exec.py); here the agent of every node does that. For
64 ranks that were 64 processes on the head; in an elastic run it was one more every second, for the host discovery
script. Under Open MPI, where it is a single one, nothing is changed.

A rank that asks the rendezvous server for what another one has still to say is answered when that has been said.
Horovod's server says 404, and the rank asks again every 10 ms, in a request of its own, while all ranks import their
framework (horovod/common/gloo/http_store.cc).

A rank on another node is started over the connection that the supervisor opens to it at the same time, so for a moment
that connection is waited for: a handshake of the rank's own takes longer.

It unpickles plain data and Horovod's messages only. A worker of an elastic run sends the driver a pickle over HTTP
without any password (horovod/runner/elastic/rendezvous.py), and signs its answers with a key of its own choice
(common/util/network.py): a rank, or whatever else reaches the driver's port, could have root run its code.

Everything that Horovod starts with multiprocessing imports the main program again; this one is empty then.

Runs under the Python that Horovod is installed for, alone in its folder: that folder is first on `sys.path`.
"""

if __name__ == "__main__":
    import base64
    import gc
    import io
    import os
    import pickle
    import re
    import shutil
    import subprocess
    import sys
    import threading
    import time
    import traceback
    import types
    from typing import Any

    HOLD_SECONDS = 1.0  # How long a question to the rendezvous server waits for its answer; then it is asked again.
    CONNECTION_SECONDS = 0.5  # From the start of this program; later ones do not wait for a connection.
    began = time.monotonic()
    gc.set_threshold(50_000, 20, 100)  # As in node/__main__.py.
    # What is left in the environment would be on the command line of every rank.
    sockets = os.environ.pop("HVDCLOUD_SSH_SOCKETS", "")

    # js_run.py looks for jsrun with distutils, which brings all of setuptools: a quarter of horovodrun's start. yaml is
    # for --config-file and for clusters under LSF.
    stand_ins = {name: types.ModuleType(name) for name in ("distutils", "distutils.spawn", "yaml")}
    stand_ins["distutils.spawn"].find_executable = shutil.which  # type: ignore[attr-defined]
    sys.modules.update(stand_ins)

    from horovod.runner import gloo_run, launch
    from horovod.runner.common.util import network, safe_shell_exec
    from horovod.runner.driver import driver_service
    from horovod.runner.elastic import discovery, rendezvous
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util import threads

    for name in stand_ins:
        del sys.modules[name]

    class Messages(pickle.Unpickler):
        """Data, and messages of Horovod's; nothing that is called."""

        def find_class(self, module: str, name: str) -> Any:
            if module.startswith("horovod.runner.") and name.isidentifier() and name.endswith(("Request", "Response")):
                found = super().find_class(module, name)
                if isinstance(found, type) and found.__module__ == module:
                    return found
            raise pickle.UnpicklingError(f"{module}.{name} is no message of Horovod's")

    class Pickle:
        """In the place of cloudpickle."""

        dumps = staticmethod(network.cloudpickle.dumps)

        @staticmethod
        def loads(data: bytes) -> Any:
            return Messages(io.BytesIO(data)).load()

    class Codec:
        """In the place of horovod.runner.common.util.codec."""

        @staticmethod
        def loads_base64(text: bytes) -> Any:
            return Pickle.loads(base64.b64decode(text))

    def forward(*arguments: Any) -> None:
        """Read what a rank prints. Nobody watches Horovod's readers: where one dies, its rank would wait forever."""
        try:
            safe_shell_exec.prefix_connection(*arguments)
        except BaseException:  # noqa: BLE001 - whatever it was, the run ends with it
            traceback.print_exc()
            os._exit(1)

    class Shell:
        """In the place of horovod.runner.common.util.safe_shell_exec."""

        @staticmethod
        def execute(
            command: str,
            *,
            env: Any = None,
            stdout: Any = None,
            stderr: Any = None,
            index: Any = None,
            events: Any = None,
            prefix_output_with_timestamp: bool = False,
        ) -> int:
            """Run a command to its end, or until one of the events ends it. Returns its exit code, 128 + N after signal
            N; what it writes goes to the streams, as Horovod's `execute` does it."""
            process = subprocess.Popen(
                command, shell=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            readers = [
                threads.in_thread(forward, (source, target, kind, index, prefix_output_with_timestamp))
                for source, target, kind in (
                    (process.stdout, stdout or sys.stdout, "stdout"),
                    (process.stderr, stderr or sys.stderr, "stderr"),
                )
            ]
            ended = threading.Event()
            for event in events or []:
                end = safe_shell_exec.terminate_executor_shell_and_children
                threads.on_event(event, end, args=(process.pid,), stop=ended, silent=True)
            code = process.wait()
            ended.set()
            for reader in readers:
                reader.join()
            return 128 - code if code < 0 else code

    class Answers:
        """Answers of the rendezvous server that are waited for. An elastic run's server has its own."""

        def __init__(self) -> None:
            self._get, self._put = RendezvousHandler._get_value, RendezvousHandler._put_value
            self._expected: dict[tuple[str, str], threading.Event] = {}
            self._lock = threading.Lock()

        def get(self, request: Any, scope: str, key: str) -> Any:
            """What was put there, if need be a moment from now; None: nothing was."""
            value = self._get(request, scope, key)
            if value is None:
                with self._lock:
                    said = self._expected.setdefault((scope, key), threading.Event())
                value = self._get(request, scope, key)
                if value is None and said.wait(HOLD_SECONDS):
                    value = self._get(request, scope, key)
            return value

        def put(self, request: Any, scope: str, key: str, value: bytes) -> None:
            """Keep it, and answer those who have asked."""
            self._put(request, scope, key, value)
            with self._lock:
                said = self._expected.pop((scope, key), None)
            if said is not None:
                said.set()

    # One that still waits for an answer must not keep a run that has failed.
    RendezvousHTTPServer.daemon_threads = True
    answers = Answers()
    RendezvousHandler._get_value = lambda request, scope, key: answers.get(request, scope, key)
    RendezvousHandler._put_value = lambda request, scope, key, value: answers.put(request, scope, key, value)

    remote_command = gloo_run.get_remote_command

    def is_connected(host: str) -> bool:
        """Whether there is a connection to the host that ssh would share."""
        folder, start = os.path.split(sockets)
        # While it is made, its socket has another ending than the port.
        return any(re.fullmatch(rf"{re.escape(start + host)}-\d+", name) for name in os.listdir(folder))

    def over_shared_connection(local_command: str, host: str, **settings: Any) -> Any:
        """The command line of ssh, once it finds the connection that the supervisor opens to the host."""
        while sockets and time.monotonic() < began + CONNECTION_SECONDS and not is_connected(host):
            time.sleep(0.002)
        return remote_command(local_command, host, **settings)

    gloo_run.get_remote_command = over_shared_connection
    network.cloudpickle, rendezvous.codec = Pickle, Codec
    gloo_run.safe_shell_exec = discovery.safe_shell_exec = Shell

    for name in ("gloo_built", "mpi_built"):
        if hasattr(launch, name):
            setattr(launch, name, lambda verbose=False: True)
    launch._check_all_hosts_ssh_successful = lambda *_, **__: True
    # Where every host is this one it wants the loopback interface, also where another one is named because more hosts
    # will join (driver_service.py).
    local_interfaces = driver_service.get_local_interfaces
    driver_service.get_local_interfaces = lambda settings: settings.nics or local_interfaces(settings)
    launch.run_commandline()
    sys.stdout.flush()
    sys.stderr.flush()
    # Every rank has ended, and the run's end waits for this process: nothing is left to tidy up.
    os._exit(0)
