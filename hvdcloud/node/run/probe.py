"""Whether a worker could start on this node: one that cannot ends the whole job."""

from __future__ import annotations

import os
import subprocess

from hvdcloud.node import machine, paths
from hvdcloud.node.records.secrets_file import read_environment
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.launcher import launcher_environment
from hvdcloud.node.run.rank import environment_of_rank, which

SECONDS = 120.0
"""The imports of a framework on a machine that has just started."""
_IMPORTS = {
    "torchrun": """
import importlib.util
if importlib.util.find_spec("torch"):
    import torch.distributed.run
""",
    "horovod": """
import importlib.util
for framework, extension in (("torch", "horovod.torch"), ("tensorflow", "horovod.tensorflow")):
    if importlib.util.find_spec(framework):
        importlib.import_module(extension)
""",
}


def worker_problem(spec: Spec) -> str:
    """Why a worker could not start here; empty if it could. Blocks while Python imports the framework."""
    needed = "Horovod" if spec.launcher == "horovod" else "PyTorch"
    try:
        user, launcher = read_environment(spec.run), launcher_environment(spec.run)
        environment = environment_of_rank(spec, user=user, launcher=launcher, image=machine.image_environment())
        asked = [which("python", environment.get("PATH", os.defpath)), "-c", _IMPORTS[spec.launcher]]
        done = subprocess.run(
            asked,
            cwd=paths.workspace(),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        return f"{error} is not there"
    except subprocess.TimeoutExpired:
        return f"Python did not import {needed} within {SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, a worker could not start either
        return f"{type(error).__name__}: {error}"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return f"{needed} cannot be imported: {said}"
