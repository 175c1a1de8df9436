#!/usr/bin/env bash
# floor.sh IMAGE NAME: what a person who knows Docker and Horovod would write by hand, and as fast as that gets:
# keys and network side by side, both containers side by side, sshd polled every 10 ms, removal by force.
set -euo pipefail
export LC_ALL=C
image=$1 name=$2
job=$(cd "$(dirname "$0")/job" && pwd)

keys=$(mktemp -d)
remove() {
    docker rm --force "$name-0" "$name-1"
    docker network rm "$name"
    rm -rf "$keys"
}
trap 'remove >/dev/null' EXIT

docker network create --label "hvdcloud-bench=$name" "$name" >/dev/null &
network=$!
ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$keys/id_ed25519"
ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$keys/host_key"
wait "$network"

node() {
    docker run --detach --name "$1" --hostname "$1" --network "$name" --label "hvdcloud-bench=$name" --shm-size 1g \
        --volume "$keys:/keys:ro" --volume "$job:/job:ro" --entrypoint sh "$image" \
        -c '. /job/node.sh && exec /usr/sbin/sshd -D -e -f /etc/hvdcloud/sshd_config' >/dev/null
}
node "$name-0" & head=$!
node "$name-1" & worker=$!
wait "$head"
wait "$worker"

docker exec "$name-0" bash /job/head.sh "$name-0" "$name-1"
