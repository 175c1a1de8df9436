"""Proves that Horovod works in this image: `check_horovod.py CONTROLLER…`, with gloo or mpi.

For each controller: it is in the Controllers rows of `horovodrun --check-build`, and two ranks started by `horovodrun`
on this machine sum a tensor. The image's build runs it, and so can anybody on a node. Exit code 0: all is well.
"""

from __future__ import annotations

import re
import subprocess
import sys

DEADLINE_SECONDS = 180
CONTROLLERS = {"gloo": "Gloo", "mpi": "MPI"}
RANK = """
import horovod.torch as hvd, torch
hvd.init()
total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)[0])
assert (hvd.size(), total) == (2, 3.0), f"size {hvd.size()}, sum {total}"
hvd.shutdown()
"""


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


def main(controllers: list[str]) -> None:
    report = run("horovodrun", "--check-build")
    rows = re.search(r"Available Controllers:\n(.*?)\n\s*\n", report, re.DOTALL)
    built = re.findall(r"\[X\] (\w+)", rows[1]) if rows else []
    for controller in controllers:
        if CONTROLLERS[controller] not in built:
            sys.exit(f"Horovod was built without {CONTROLLERS[controller]}:\n{report}")
    for controller in controllers:
        run(
            "horovodrun", f"--{controller}", "-np", "2", "-H", "localhost:2", "--network-interface", "lo",
            "--disable-cache", sys.executable, "-c", RANK,
        )  # fmt: skip
        sys.stdout.write(f"Horovod works with {CONTROLLERS[controller]}: two ranks summed a tensor\n")


if __name__ == "__main__":
    main(sys.argv[1:])
