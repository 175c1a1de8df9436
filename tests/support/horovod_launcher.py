"""As much of Horovod's launcher as our horovodrun.py touches."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.node.run import launcher

OURS = str(Path(launcher.__file__).with_name("horovodrun.py"))

# What a module calls pickle is where the real one has cloudpickle.
HOROVOD = {
    "runner/js_run.py": "from distutils.spawn import find_executable\n",
    "runner/launch.py": "from horovod.runner import js_run\n"
    "gloo_built = mpi_built = None\ndef run_commandline():\n    pass\n",
    "runner/gloo_run.py": "from horovod.runner.common.util import safe_shell_exec\n"
    "def get_remote_command(local_command, host, port=None, identity_file=None):\n"
    "    return f'ssh -p {port} {host} {local_command}'\n",
    "runner/http/http_server.py": "class RendezvousHTTPServer:\n    daemon_threads = False\n"
    "class RendezvousHandler:\n    kept = {}\n"
    "    def _get_value(self, scope, key):\n        return self.kept.get((scope, key))\n"
    "    def _put_value(self, scope, key, value):\n        self.kept[scope, key] = value\n",
    "runner/driver/driver_service.py": "get_local_interfaces = None\n",
    "runner/util/threads.py": "import threading\n"
    "def in_thread(target, args=()):\n"
    "    thread = threading.Thread(target=target, args=args, daemon=True)\n    thread.start()\n    return thread\n"
    "def on_event(event, func, args=(), stop=None, silent=False):\n"
    "    def wait():\n"
    "        while not event.is_set() and not stop.is_set():\n            event.wait(timeout=1.0)\n"
    "        if not stop.is_set():\n            func(*args)\n"
    "    return in_thread(wait)\n",
    "runner/common/util/safe_shell_exec.py": "import os, signal\n"
    "def prefix_connection(source, target, prefix, index, prefix_output_with_timestamp):\n"
    "    while data := os.read(source.fileno(), 1000):\n"
    "        target.write(f'[{index}]<{prefix}>:{data.decode()}')\n"
    "    source.close()\n"
    "def terminate_executor_shell_and_children(pid):\n    os.killpg(pid, signal.SIGTERM)\n",
    "runner/common/util/codec.py": "import base64, pickle\n"
    "def loads_base64(text):\n    return pickle.loads(base64.b64decode(text))\n",
    "runner/common/util/network.py": "import pickle as cloudpickle, shutil\n"
    "def RunRequest(text):\n    raise AssertionError(text)\n"
    "class PingResponse:\n    def __init__(self, name):\n        self.name = name\n"
    "def read(data):\n    return cloudpickle.loads(data)\n",
    "runner/elastic/discovery.py": "from horovod.runner.common.util import safe_shell_exec\n",
    "runner/elastic/rendezvous.py": "from horovod.runner.common.util import codec\n"
    "def put(value):\n    return codec.loads_base64(value)\n",
}


def after_our_horovodrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`horovod.runner`, after our horovodrun has begun; for a fixture."""
    for name, text in HOROVOD.items():
        file = folder / "horovod" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for each in [folder / "horovod", *(folder / "horovod").rglob("*/")]:
        (each / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)
    for name in [each for each in sys.modules if each.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    # It ends its process, which is this one.
    monkeypatch.setattr(os, "_exit", lambda code: None)
    runpy.run_path(OURS, run_name="__main__")
    yield sys.modules["horovod.runner"]
    for name in [each for each in sys.modules if each.partition(".")[0] == "horovod"]:
        del sys.modules[name]
