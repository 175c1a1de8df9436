#!/bin/bash
# What the VM does at its end, whatever ends it: preemption, its time limit, a deletion. Best effort, and on a Spot VM half
# a minute in all: https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
#
# The container has probably been told already. Its agent watches the metadata server itself; and systemd, which runs this
# script to stop google-shutdown-scripts.service, orders that service after the network only: Docker is stopped at the same
# time, or before. It then sends SIGTERM and waits as long as the start said (--stop-timeout), or, with live-restore, leaves
# the container alone. So the signal goes to the container's first process itself.
# https://github.com/GoogleCloudPlatform/guest-agent/blob/24e667f04b92/google-shutdown-scripts.service
# https://docs.docker.com/engine/daemon/live-restore
set -uo pipefail

export HOME=/var/lib/hvdcloud LC_ALL=C
METADATA=http://169.254.169.254/computeMetadata/v1
STOP_SECONDS=28

say() {
    printf 'hvdcloud: %s\n' "$*"
}

why() {
    if [[ $(curl -sS -f -H 'Metadata-Flavor: Google' --connect-timeout 1 --max-time 2 \
        "$METADATA/instance/preempted" 2>/dev/null) == TRUE ]]; then
        echo preempted
    else
        echo 'shut down'
    fi
}

# The node program is there without Docker too: its first process ends last.
node_runs() {
    grep -qszx hvdcloud.node /proc/[0-9]*/cmdline
}

watch_the_end() {
    while node_runs && ((SECONDS < STOP_SECONDS)); do
        sleep 0.2
    done
    say "$(node_runs && echo 'the container was still there' || echo 'the container ended') $SECONDS s after the VM's end began"
}

if ! node_runs; then
    say "the VM is being $(why): its container has ended already"
    exit 0
fi
say "the VM is being $(why): its container is ended, which uploads its checkpoints first"
first=$(cat "$HOME/container-pid" 2>/dev/null)
# The number may be another process's by now.
if grep -qszx hvdcloud.node "/proc/$first/cmdline"; then
    kill -TERM "$first"
fi
watch_the_end
