"""Proves that this image can be a node: `check_node.py WHAT… [--gpu CAPABILITY]`.

WHAT has to work, as check_ranks.py takes it, or is `any`, which is nothing. The capability is that of the GPUs that the
framework has to have code for.

Ranks reduce a tensor, with Horovod one that fits its framework, and the node program comes up as on a node: it starts
sshd, root comes in with a key and finds it there. The other controller may be missing; then a line says so.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

# What is known of an image that is not ours.
NODE = Path(__file__).with_name("node.json")
CHECK_RANKS = Path(__file__).with_name("check_ranks.py")
CONTROLLERS = ("gloo", "mpi")
ENTRYPOINT = ("hvdcloud-node", "entrypoint")
ON_PATH = ("python", "hvdcloud-node")
LAUNCHERS = {"gloo": "horovodrun", "mpi": "horovodrun", "torchrun": "torchrun"}
PORT = 2222
READY_SECONDS = 60.0
LOGIN_SECONDS = 30.0
# What the entrypoint writes, none of which may be in an image.
WRITTEN = (Path("/root/.ssh"), Path("/var/lib/hvdcloud"), Path("/run/hvdcloud"))
HOST_KEYS = "ssh_host_ed25519_key*"


def refuse(cause: str, command: str) -> NoReturn:
    """Ends the build; hvdcloud shows these two lines as its error."""
    sys.stderr.write(f"hvdcloud: refused: {cause}\nhvdcloud: next: {command}\n")
    sys.exit(3)


def check_programs(needed: list[str]) -> None:
    """What a run starts is on the image's PATH."""
    for program in dict.fromkeys([*(LAUNCHERS[each] for each in needed if each in LAUNCHERS), *ON_PATH]):
        if shutil.which(program) is None:
            refuse(f"{program} is not on its PATH ({os.environ['PATH']})", "add to PATH instead of replacing it")


def check_ranks(what: str) -> None:
    """Ranks of torchrun reduce a tensor, or a framework can be imported."""
    if said := tried(what):
        refuse(f"{what} does not work: {first_reason(said)}", "leave the framework as it is, or fix it")


def check_horovod(needed: list[str]) -> None:
    """Horovod fits its framework, and ranks reduce a tensor with each controller."""
    said = tried(*CONTROLLERS)
    if said is None:
        return
    for controller in CONTROLLERS:
        said = tried(controller)
        if said is None:
            continue
        cause = first_reason(said)
        if controller in needed:
            other = "mpi" if controller == "gloo" else "gloo"
            refuse(
                f"Horovod does not work with run.controller {controller}: {cause}",
                f"leave Horovod and its framework as they are, or fix them; or try run.controller: {other}",
            )
        sys.stdout.write(f"hvdcloud: this image is of no use with run.controller {controller}: {cause}\n")


def tried(*what: str) -> str | None:
    """What check_ranks.py says if it fails."""
    done = subprocess.run(
        [sys.executable, "-B", str(CHECK_RANKS), *what],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    return done.stdout if done.returncode else None


def first_reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"[A-Za-z]*Error\b.*:", line)]
    return (errors or lines or ["no reason given"])[0]


def check_gpu(capability: str) -> None:
    """The framework has code for the nodes' GPUs.

    Compiled code (sm_75) runs on GPUs of its major version and the same minor version or a higher one, PTX (compute_75)
    on its own and every later one: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility
    """
    facts = json.loads(NODE.read_text())
    if facts["framework"] == "any":
        return
    major, minor = (int(part) for part in capability.split("."))
    for kind, number in re.findall(r"(sm|compute)_(\d+)", " ".join(facts["capabilities"])):
        its = divmod(int(number), 10)
        if its <= (major, minor) and (kind == "compute" or its[0] == major):
            return
    refuse(
        f"its {facts['framework']} {facts['version']} has code for {', '.join(facts['capabilities']) or 'no GPU'}, and "
        f"none of it runs on the nodes' GPUs, whose compute capability is {capability}",
        "take another image.base or other GPUs (gce.gpu)",
    )


def check_entrypoint() -> None:
    """The node program as a container's first process, and a login as hvdcloud's."""
    kept = Path(tempfile.mkdtemp(prefix="hvdcloud-check-"))
    copies = {path: kept / str(number) for number, path in enumerate(WRITTEN) if path.exists()}
    for path, copy in copies.items():
        subprocess.run(["cp", "-a", path, copy], check=True)
    try:
        start_and_log_in(kept)
    finally:
        for path in WRITTEN:
            shutil.rmtree(path, ignore_errors=True)
        for path, copy in copies.items():
            subprocess.run(["cp", "-a", copy, path], check=True)
        for key in Path("/etc/hvdcloud").glob(HOST_KEYS):
            key.unlink()
        shutil.rmtree(kept)


def start_and_log_in(folder: Path) -> None:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    environment = {**os.environ, "HVDCLOUD_AUTHORIZED_KEY": key.with_suffix(".pub").read_text().strip()}
    errors = folder / "errors"
    with errors.open("w") as error:
        node = subprocess.Popen(
            ENTRYPOINT, env=environment, stdout=subprocess.PIPE, stderr=error, text=True, start_new_session=True
        )
    try:
        status = wait_for_status(node)
        if status.get("status") != "ready":
            said = errors.read_text().strip().splitlines()
            step = f" at its step {status['step']}" if "step" in status else ""
            cause = str(status.get("error") or (said[-1] if said else "it says nothing"))
            refuse(f"the node program does not come up{step}: {cause}", "leave sshd and /opt/hvdcloud as they are")
        log_in(key, errors)
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait()


def wait_for_status(node: subprocess.Popen[str]) -> dict[str, Any]:
    """The first status of the node program that is an end: ready or failed."""
    assert node.stdout is not None
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if not select.select([node.stdout], [], [], 0.1)[0]:
            continue
        line = node.stdout.readline()
        if not line:
            break
        if line.startswith("hvdcloud-status "):
            status: dict[str, Any] = json.loads(line.partition(" ")[2])
            if status.get("status") in ("ready", "failed"):
                return status
    return {"error": f"it is not ready after {READY_SECONDS:.0f} s"} if node.poll() is None else {}


def log_in(key: Path, errors: Path) -> None:
    """As hvdcloud does: over SSH, where the image's ENV does not apply."""
    options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
    command = ["ssh", "-p", str(PORT), "-i", str(key), *(word for option in options for word in ("-o", option))]
    try:
        done = subprocess.run(
            [*command, "root@127.0.0.1", "hvdcloud-node state"],
            capture_output=True, text=True, timeout=LOGIN_SECONDS, check=False,
        )  # fmt: skip
        said = (done.stderr or done.stdout).strip().splitlines()
    except subprocess.TimeoutExpired:
        done, said = None, [f"no answer within {LOGIN_SECONDS:.0f} s"]
    if done is None or done.returncode != 0:
        lines = errors.read_text().strip().splitlines()
        cause = (said or lines or ["no reason given"])[-1]
        refuse(f"root can't log in and use the node program: {cause}", "leave root, its shell and sshd as they are")


def main(arguments: list[str]) -> None:
    gpu = arguments.index("--gpu") if "--gpu" in arguments else len(arguments)
    needed = [each for each in arguments[:gpu] if each != "any"]
    check_programs(needed)
    for capability in arguments[gpu + 1 :]:
        check_gpu(capability)
    # What takes no time first.
    check_entrypoint()
    if set(needed) & set(CONTROLLERS):
        check_horovod(needed)
    else:
        for each in needed:
            check_ranks(each)
    sys.stdout.write("this image can be a node: its node program starts, and root can log in\n")


if __name__ == "__main__":
    main(sys.argv[1:])
