"""Proves that ranks work in this image: `check_ranks.py WHAT…`.

gloo, mpi: two ranks that `horovodrun` starts on this machine with this controller, which refuses what Horovod was built
without, sum a tensor with each framework that Horovod was compiled for, and with TensorFlow train a Keras model.
torchrun: two ranks that it starts train a model, and have the same weights then.
torch, tensorflow: it can be imported.

The image's build runs it, and so can anybody on a node. Exit code 0: all is well.

`--cuda`, `--nccl` and `--capabilities` say what an image for GPUs has to hold: so much can be seen without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 180
CONTROLLERS = {"gloo": "Gloo", "mpi": "MPI"}
# Framework: its name in Horovod's metadata.json.
FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}
RANKS = {
    "torch": """
import horovod.torch as hvd, torch
hvd.init()
total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)[0])
assert (hvd.size(), total) == (2, 3.0), f"size {hvd.size()}, sum {total}"
hvd.shutdown()
""",
    # With Keras 3 Horovod's optimizer does not average gradients, and says nothing: from weight 0 and targets 1 and 2,
    # the ranks would go to 2 and 4 instead of 3 and 3.
    "tensorflow": """
import importlib.util, os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import horovod.tensorflow.keras as hvd, tensorflow as tf
keras = sys.modules[tf.keras.Model.__module__.partition(".")[0]].__version__
assert keras.startswith("2."), f"tf.keras is Keras {keras}, whose gradients Horovod does not average: use Keras 2"
if importlib.util.find_spec("keras"):
    import horovod.keras
hvd.init()
total = float(hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)[0])
assert (hvd.size(), total) == (2, 3.0), f"size {hvd.size()}, sum {total}"
model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0)), "mse")
model.fit(tf.constant([[1.0]]), tf.constant([[hvd.rank() + 1.0]]), verbose=0)
weights = hvd.allgather(model.trainable_weights[0].numpy()).numpy().flatten().tolist()
assert weights == [3.0, 3.0], f"after one step the ranks' weights are {weights}"
hvd.shutdown()
""",
}
# From weight 0 and targets 1 and 2, as above: 3 and 3.
TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(layer.weight)
model = torch.nn.parallel.DistributedDataParallel(layer)
(model(torch.ones(1, 1)) - dist.get_rank() - 1).square().sum().backward()
torch.optim.SGD(layer.parameters(), 1.0).step()
weights = [None] * dist.get_world_size()
dist.all_gather_object(weights, float(layer.weight))
assert weights == [3.0, 3.0], f"after one step the ranks' weights are {weights}"
dist.destroy_process_group()
"""
# What the framework's own CUDA code is for, as JSON: `cuda` ("" without) and `capabilities`.
FACTS = {
    "torch": """
import json, torch
flags = torch._C._cuda_getArchFlags().split() if torch.version.cuda else []
compiled = [flag.removeprefix("sm_") for flag in flags if flag.startswith("sm_")]
print(json.dumps({"cuda": torch.version.cuda or "", "capabilities": [f"{each[:-1]}.{each[-1]}" for each in compiled]}))
""",
    "tensorflow": """
import json, tensorflow as tf
build = tf.sysconfig.get_build_info()
# sm_75 is code, compute_80 is code and PTX: https://github.com/tensorflow/tensorflow/blob/v2.15.1/configure.py
compiled = [each.rpartition("_")[2] for each in build.get("cuda_compute_capabilities", [])]
print(json.dumps({
    "cuda": build.get("cuda_version", ""), "capabilities": [f"{each[:-1]}.{each[-1]}" for each in compiled]
}))
""",
}
# Which NCCL a process has once Horovod or torch alone has started, and the version that this NCCL says it is, as JSON.
NCCL = """
import ctypes, importlib, json, sys
module = importlib.import_module(sys.argv[1])
if sys.argv[1] == "torch":
    built = module.distributed.is_nccl_available()
else:
    module.init()
    built = module.nccl_built()
files = sorted({line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/libnccl.so" in line})
version = ctypes.c_int()
for file in files:
    ctypes.CDLL(file).ncclGetVersion(ctypes.byref(version))
print(json.dumps({"files": files, "version": version.value, "built": bool(built)}))
"""
# The driver's library, which comes with the GPU.
DRIVER = "libcuda.so.1"


def run(*command: str) -> str:
    """Returns what the command prints; exits with its output if it fails or takes too long."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        sys.exit(f"{command[:4]} took more than {DEADLINE_SECONDS} s:\n{error.output!r}")
    if done.returncode != 0:
        sys.exit(f"{command[:4]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def horovod_folder() -> Path:
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        sys.exit("there is no Horovod in this Python")
    return Path(spec.origin).parent


def frameworks() -> list[str]:
    """Those that Horovod was compiled for; exits unless each is here, in the version that it was compiled with."""
    compiled = json.loads((horovod_folder() / "metadata.json").read_text())
    found = [framework for framework, name in FRAMEWORKS.items() if compiled.get(name)]
    projects = importlib.metadata.packages_distributions()
    for framework in found:
        # tensorflow may come from a project of another name: tensorflow-cpu.
        (project, *_) = projects.get(framework, [framework])
        version, wanted = importlib.metadata.version(project), compiled[FRAMEWORKS[framework]]
        if version.partition("+")[0] != wanted.partition("+")[0]:
            sys.exit(f"Horovod was compiled with {framework} {wanted}, but {framework} {version} is here")
    return found or sys.exit(f"Horovod was compiled for none of {', '.join(FRAMEWORKS)}")


def answer(code: str, *arguments: str) -> dict[str, Any]:
    """The JSON object in the last line that a Python program prints."""
    found: dict[str, Any] = json.loads(run(sys.executable, "-c", code, *arguments).splitlines()[-1])
    return found


def check_cuda(framework: str, *, horovod: bool, cuda: str, nccl: str, capabilities: list[str]) -> None:
    """The framework's CUDA, the GPUs that it has code for, and the one NCCL that it and Horovod have.

    TensorFlow alone loads its NCCL when it first needs it.
    """
    facts = answer(FACTS[framework])
    if facts["cuda"] != cuda:
        sys.exit(f"{framework} is built for CUDA {facts['cuda'] or 'none'}, not {cuda}")
    if missing := [each for each in capabilities if each not in facts["capabilities"]]:
        sys.exit(f"{framework} has no code for GPUs of {missing}, only for {facts['capabilities']}")
    if not horovod and framework == "tensorflow":
        return
    found = answer(NCCL, f"horovod.{framework}" if horovod else framework)
    if len(found["files"]) != 1 or not found["built"]:
        sys.exit(f"there is not one NCCL for {framework}{' and Horovod' if horovod else ''}: {found}")
    # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html
    major, minor, patch = (int(part) for part in nccl.split("."))
    if found["version"] != major * 10000 + minor * 100 + patch:
        sys.exit(f"{found['files'][0]} is NCCL {found['version']}, not {nccl}")
    sys.stdout.write(f"{framework}: CUDA {cuda} for {', '.join(capabilities)}; one NCCL {nccl}: {found['files'][0]}\n")


def check_libraries(found: list[str]) -> None:
    """Nothing that Horovod's compiled parts need is missing, but for the GPU's driver."""
    folders = [Path(spec.origin).parent for spec in map(importlib.util.find_spec, found) if spec and spec.origin]
    # TensorFlow's are not on the linker's path: they are there because Python has imported it before Horovod's.
    later = {DRIVER, *(file.name for folder in folders for file in folder.rglob("lib*.so*"))}
    for file in sorted(horovod_folder().rglob("*.so")):
        lines = [line.strip() for line in run("ldd", str(file)).splitlines()]
        missing = [line for line in lines if "not found" in line and line.split()[0] not in later]
        if missing:
            sys.exit(f"{file} needs what is not there: {missing}")
        sys.stdout.write(f"{file.name}: none of its {len(lines)} libraries is missing\n")


def check_torchrun() -> None:
    """Two ranks train over the loopback interface, whatever this machine is called."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run(
        "env", "GLOO_SOCKET_IFNAME=lo", "CUDA_VISIBLE_DEVICES=", "torchrun", "--nproc_per_node=2",
        "--master_addr=127.0.0.1", f"--master_port={port}", "--no_python", sys.executable, "-c", TORCHRUN,
    )  # fmt: skip
    sys.stdout.write("torchrun works: two ranks trained a model of torch with Gloo\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="proves that ranks work in this image")
    parser.add_argument("what", nargs="+", choices=[*CONTROLLERS, "torchrun", *FRAMEWORKS])
    parser.add_argument("--cuda", default="", help="the framework's CUDA: 12.6")
    parser.add_argument("--nccl", default="", help="the NCCL that framework and Horovod share: 2.26.2")
    parser.add_argument("--capabilities", default="", help="compute capabilities that it has code for: '7.5 8.0'")
    wanted = parser.parse_args()
    controllers = [each for each in wanted.what if each in CONTROLLERS]
    found = frameworks() if controllers else ["torch" if each == "torchrun" else each for each in wanted.what]
    if wanted.cuda and controllers:
        check_libraries(found)
    for framework in found:
        run(sys.executable, "-c", f"import {framework}")
        if wanted.cuda:
            check_cuda(
                framework, horovod=bool(controllers), cuda=wanted.cuda, nccl=wanted.nccl,
                capabilities=wanted.capabilities.split(),
            )  # fmt: skip
    if "torchrun" in wanted.what:
        check_torchrun()
    for controller in controllers:
        for framework in found:
            run(
                "horovodrun", f"--{controller}", "-np", "2", "-H", "localhost:2", "--network-interface", "lo",
                "--disable-cache", sys.executable, "-c", RANKS[framework],
            )  # fmt: skip
            sys.stdout.write(
                f"Horovod works with {CONTROLLERS[controller]}: two ranks summed a tensor of {framework}\n"
            )


if __name__ == "__main__":
    main()
