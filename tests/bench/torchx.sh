#!/usr/bin/env bash
# torchx.sh IMAGE BIN cli|api: submits the job to TorchX, waits for SUCCEEDED, removes its containers.
# IMAGE is an image's id: with a name, TorchX would first try to pull it. BIN is the folder with torchx and its Python.
set -euo pipefail
export LC_ALL=C
image=$1 bin=$2 how=$3
here=$(cd "$(dirname "$0")" && pwd)
mark() { echo "bench-mark $1 $EPOCHREALTIME"; }

keys=$(mktemp -d)
remove() {
    # shellcheck disable=SC2046  # one word per container
    docker rm --force $(docker ps --all --quiet --filter "ancestor=$image" --filter label=torchx.pytorch.org/app-id)
    rm -rf "$keys"
}
trap 'remove >/dev/null' EXIT

ssh-keygen -q -t ed25519 -N '' -C hvdcloud-bench -f "$keys/id_ed25519"
ssh-keygen -q -t ed25519 -N '' -C hvdcloud-bench -f "$keys/host_key"
mkfifo "$keys/ended"

if [ "$how" = api ]; then
    "$bin/python" "$here/torchx_job.py" "$image" "$keys" "$here/job"
else
    # An empty workspace: TorchX would otherwise build an image with the working folder in it.
    "$bin/torchx" run --scheduler local_docker --workspace "" "$here/torchx_job.py:job" \
        --image "$image" --keys "$keys" --scripts "$here/job"
fi
mark removing
