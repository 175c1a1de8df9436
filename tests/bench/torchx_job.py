"""The same job for TorchX 0.7's local_docker scheduler: two replicas of one role.

`job` is the component that `torchx run` takes. As a program (`torchx_job.py IMAGE KEYS SCRIPTS`) it submits the job
through TorchX's own API, which may be asked more often than the command asks: once a second. Runs under the Python that
has torchx, not under hvdcloud's.

The head is the last replica: TorchX starts them one after the other, so the other one's name is known by then. The
worker ends when the head says so, since TorchX calls a job SUCCEEDED only when every replica has ended with 0.
"""

# No `from __future__ import annotations`: torchx reads the types of a component's parameters as they stand.
import sys

from torchx import specs

# Asking costs the engine some work, which shows on two cores: every 10 ms made the whole job slower.
POLL_SECONDS = 0.1
SCRIPT = """
. /job/node.sh
worker=$TORCHX_RANK0_HOST
if [ "$HOSTNAME" = "$worker" ]; then
    /usr/sbin/sshd -f /etc/hvdcloud/sshd_config
    read -r result < /keys/ended
    exit "$result"
fi
bash /job/head.sh "$HOSTNAME" "$worker"
result=$?
echo "$result" > /keys/ended
exit "$result"
"""


def job(image: str, keys: str, scripts: str) -> specs.AppDef:
    """Two replicas that sum some tensors.

    Args:
        image: with Horovod and sshd, and without an entrypoint, which TorchX cannot replace
        keys: folder with the keys, and a named pipe called ended
        scripts: the folder with allreduce.py
    """
    mounts = ["type=bind", f"src={keys}", "dst=/keys", "type=bind", f"src={scripts}", "dst=/job", "readonly"]
    role = specs.Role(
        name="node",
        image=image,
        entrypoint="bash",
        args=["-c", SCRIPT.replace("$", "$$")],  # TorchX has variables of its own, which begin with $, too.
        num_replicas=2,
        mounts=specs.parse_mounts(mounts),
    )
    return specs.AppDef(name="hvdcloud-bench", roles=[role])


def main(image: str, keys: str, scripts: str) -> int:
    from torchx.runner import get_runner

    with get_runner() as runner:
        handle = runner.run(job(image, keys, scripts), scheduler="local_docker")
        status = runner.wait(handle, wait_interval=POLL_SECONDS)
        for line in runner.log_lines(handle, "node", 1):
            sys.stdout.write(line if line.endswith("\n") else line + "\n")
    return 0 if status is not None and status.state == specs.AppState.SUCCEEDED else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
