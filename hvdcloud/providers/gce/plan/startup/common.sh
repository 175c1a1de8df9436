#!/bin/bash
# What the steps are made of: time limits, retries, and words to the outside.
set -Eeuo pipefail
# The guest agent may stop reading what a script prints: that must not end the one that follows the container.
trap '' PIPE

# / and /root are read-only on Container-Optimized OS, and docker login writes to HOME.
export HOME=/var/lib/hvdcloud LC_ALL=C
METADATA=http://169.254.169.254 # by its address: a network may hide the name
CONTAINER=hvdcloud
STEP=boot
ERRORS=$HOME/errors # the output of the last command: what a failure quotes
LEVEL=0             # of subshells, where a command's failure is the job's
HOPELESS=100        # exit status: trying again is no use
IDLE_SECONDS=1800   # where the metadata server does not say: the default of limits.idle
READY_SECONDS=600   # of a container that takes seconds
DELETED_SECONDS=300 # how long a deletion that was granted may take
SERIAL=/dev/ttyS0

say() {
    put "hvdcloud: $*"
}

# Older guest agents copy a script's output to the serial port, newer ones to the system log alone, and stop at a line of
# more than 64 KiB.
put() {
    local line=${1:0:4000}
    printf '%s\n' "$line" 2>/dev/null || true
    [[ ! -c $SERIAL ]] || printf '%s\r\n' "$line" 2>/dev/null >"$SERIAL" || true
}

say_lines() {
    local line
    while IFS= read -r line || [[ -n $line ]]; do
        say "$line"
    done
}

# The end of TEXT as a JSON string. Whatever is not printable ASCII becomes `?`, so the result is valid in any case.
json() {
    local text=$1
    ((${#text} <= 1000)) || text=${text: -1000}
    text=${text//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/\\n}
    text=${text//[[:space:]]/ }
    printf '"%s"' "${text//[^[:print:]]/?}"
}

# GET a path below computeMetadata/v1/: https://cloud.google.com/compute/docs/metadata/querying-metadata
metadata() {
    curl -sS -f -H 'Metadata-Flavor: Google' --connect-timeout 5 --max-time 20 \
        --retry 5 --retry-all-errors --retry-max-time 60 "$METADATA/computeMetadata/v1/$1" 2>"$ERRORS"
}

# PUT the guest attribute that the laptop reads. A node that cannot say how it fares still goes on.
report() {
    if ! curl -sS -f -o /dev/null -X PUT --data-binary "$1" -H 'Metadata-Flavor: Google' --connect-timeout 3 --max-time 5 \
        --retry 3 --retry-all-errors --retry-max-time 20 \
        "$METADATA/computeMetadata/v1/instance/guest-attributes/hvdcloud/status" 2>&1 | say_lines; then
        say "not reported: $1"
    fi
}

# step NAME STATUS: what follows belongs to this step.
step() {
    STEP=$1
    : >"$ERRORS"
    say "step $STEP, $SECONDS s after the start of this script"
    report "$2"
}

report_failure() {
    say "failed: step $STEP: $1"
    report "{\"status\": \"failed\", \"step\": $(json "$STEP"), \"error\": $(json "$1")}"
}

on_error() {
    local status=$1 command=$2 error
    trap - ERR
    ((BASH_SUBSHELL == LEVEL)) || exit "$status"
    error=$(tail -n 5 "$ERRORS") || true
    error=${error:-$command: exit status $status}
    if ((LEVEL > 0)); then
        printf '%s\n' "$STEP" "$error" >"$HOME/failed"
        exit "$status"
    fi
    report_failure "$error"
    give_up
}
trap 'on_error $? "$BASH_COMMAND"' ERR

# The VM stays, so that its serial log can be read. `up` on the laptop deletes it; where that is dead, it ends itself
# later. In the foreground: systemd ends what a startup script leaves behind.
give_up() {
    local seconds
    trap - ERR
    seconds=$(idle_seconds)
    if [[ -n $seconds ]]; then
        sleep "$seconds" || true
        # A container that came up all the same (too late, or Docker failed under it) may hold a run, and ends itself.
        while container_runs; do
            sleep 15 || true
        done
        say "the start failed and nobody deleted this VM for $(spoken "$seconds")"
        end_vm || true
    fi
    exit 1
}

# Delete this VM, or switch it off. One that is off keeps its disk, which costs money, and Compute Engine forgets its time
# limit: https://cloud.google.com/compute/docs/instances/limit-vm-runtime
end_vm() {
    if [[ $(systemctl is-system-running 2>/dev/null) == stopping ]]; then
        # A person or Compute Engine stops this VM, which may be started again.
        return 0
    elif ! disk_is_of_no_use; then
        say "its disk may hold checkpoints that are nowhere else: switching off; the disk costs money until hvdcloud down"
    elif retry 3 delete_vm; then
        say "deleting this VM"
        sleep "$DELETED_SECONDS" || true
        say "still here $DELETED_SECONDS s after the deletion was granted: switching off"
    else
        say "this VM cannot delete itself: $(sed -n 's/^ *"message": *"\(.*\)",\{0,1\}$/\1/p; $!d; /^[^}]/p' "$ERRORS" | head -n 1)"
        say "switching off; its disk costs money until hvdcloud down; hvdcloud setup allows nodes to delete themselves"
    fi
    shutdown -h now
}

# There was no container, or it never got ready, or its last words were that the bucket has all checkpoints.
disk_is_of_no_use() {
    local statuses
    [[ -e $HOME/container ]] || return 0
    statuses=$(timeout --kill-after=5 20 docker logs "$CONTAINER" 2>/dev/null | sed -n '/^hvdcloud-status /p') || return 1
    case ${statuses##*$'\n'} in
    *'"status": "ended", "complete": true}') return 0 ;;
    esac
    [[ $statuses != *'"status": "ready"'* ]]
}

# https://cloud.google.com/compute/docs/reference/rest/v1/instances/delete
delete_vm() {
    local token project zone name endpoint='' status=0
    token=$(access_token) && project=$(metadata project/project-id) && zone=$(metadata instance/zone) &&
        name=$(metadata instance/name) && ATTRIBUTES=$(metadata instance/attributes/) &&
        endpoint=$(optional hvdcloud-compute-endpoint) || return "$HOPELESS"
    # The token is on no command line.
    curl -sS --fail-with-body -X DELETE --connect-timeout 5 --max-time 20 --retry 5 --retry-max-time 60 -H @- \
        "${endpoint:-https://compute.googleapis.com}/compute/v1/projects/$project/zones/${zone##*/}/instances/$name" \
        <<<"Authorization: Bearer $token" >"$ERRORS" 2>&1 || status=$?
    # 22: the API has answered, and its answer is no.
    ((status != 22)) || status=$HOPELESS
    return "$status"
}

access_token() {
    metadata instance/service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p'
}

# After how long a VM of no use ends; nothing where it never does. One that cannot ask is as good as forgotten.
idle_seconds() {
    local seconds=$IDLE_SECONDS
    if ATTRIBUTES=$(metadata instance/attributes/); then
        seconds=$(optional hvdcloud-idle) || seconds=$IDLE_SECONDS
        [[ -z $seconds || $seconds =~ ^[0-9]+(\.[0-9]+)?$ ]] || seconds=$IDLE_SECONDS
    fi
    printf '%s' "$seconds"
}

spoken() {
    local seconds=${1%.*}
    if ((10#$seconds >= 60)); then
        echo "$((10#$seconds / 60)) min"
    else
        echo "$1 s"
    fi
}

mkdir -p "$HOME"
: >"$ERRORS"

# limited SECONDS COMMAND...: its output goes to the serial port.
limited() {
    local seconds=$1 status=0
    shift
    timeout --kill-after=10 "$seconds" "$@" 2>&1 | tee "$ERRORS" | say_lines || status=$?
    ((status != 124)) || echo "not done within $seconds s: $*" >>"$ERRORS"
    return "$status"
}

# await SECONDS COMMAND...: until it succeeds.
await() {
    local seconds=$1 deadline=$((SECONDS + $1))
    shift
    until timeout --kill-after=5 20 "$@" >"$ERRORS" 2>&1; do
        if ((SECONDS >= deadline)); then
            echo "not within $seconds s: $*" >>"$ERRORS"
            return 1
        fi
        sleep 1
    done
}

# retry TIMES COMMAND...: with growing pauses, unless it is hopeless.
retry() {
    local left=$1 pause=2 status
    shift
    until "$@"; do
        status=$?
        left=$((left - 1))
        ((left > 0 && status != HOPELESS)) || return "$status"
        say "exit status $status, again in $pause s: $*"
        sleep "$pause"
        pause=$((pause * 2))
    done
}

# side_by_side FUNCTION...: the first that fails ends the others, and is the failure of all.
side_by_side() {
    local each pid
    local -A running=()
    for each in "$@"; do
        alone "$each" &
        running[$!]=$each
    done
    # Not `wait -n`, which before Bash 5.3 forgets those that ended while another command ran.
    while ((${#running[@]} > 0)); do
        [[ $STEP == driver || ${running[*]} != driver ]] || step driver '{"status": "driver"}'
        sleep 0.2
        for pid in "${!running[@]}"; do
            ! kill -0 "$pid" 2>/dev/null || continue
            unset "running[$pid]"
            wait "$pid" || failed_alone "${!running[@]}"
        done
    done
}

# failed_alone PID...: of those that still run.
failed_alone() {
    local pid
    trap - ERR
    for pid in "$@"; do
        end_tree "$pid"
    done
    STEP=$(head -n 1 "$HOME/failed")
    report_failure "$(tail -n +2 "$HOME/failed")"
    give_up
}

# A process and all that it has started: `timeout` takes its command into a process group of its own.
end_tree() {
    local child children=()
    read -r -a children 2>/dev/null <"/proc/$1/task/$1/children" || true
    for child in "${children[@]}"; do
        end_tree "$child"
    done
    kill "$1" 2>/dev/null || true
}

# In a process of its own, whose failure its parent tells.
alone() {
    LEVEL=$BASH_SUBSHELL STEP=$1 ERRORS=$HOME/errors.$1
    touch "$HOME/$1"
    "$1"
    say "$1 done, $SECONDS s after the start of this script"
    rm -f "$HOME/$1"
}

# What a node that pulls its image does besides, for its status.
beside() {
    [[ ! -e $HOME/driver ]] || printf ', "beside": "driver"'
}

# By the VM's own service account: https://cloud.google.com/artifact-registry/docs/docker/authentication#token
log_in() {
    local token
    token=$(access_token) || return
    limited 60 docker login -u oauth2accesstoken --password-stdin "https://$REGISTRY" <<<"$token"
}

pull() {
    local status=0
    timeout --kill-after=10 1800 docker pull "$IMAGE" 2>&1 | tee "$ERRORS" | follow_pull || status=$?
    ((status != 124)) || echo "not pulled within 1800 s" >>"$ERRORS"
    if ((status != 0)) && grep -qiE 'not found|manifest unknown|denied|unauthorized|invalid reference|no space left' \
        "$ERRORS"; then
        status=$HOPELESS
    fi
    return "$status"
}

# Reads what `docker pull` says without a terminal. A layer that is downloaded is half done, one that is unpacked is done.
follow_pull() {
    local -A layers=()
    local line layer total percent now shown=0 last=${EPOCHREALTIME/./} # all layers are named within the first second
    while IFS= read -r line || [[ -n $line ]]; do
        if [[ ! $line =~ ^([0-9a-f]{12}):\ (.+)$ ]]; then
            say "$line"
            continue
        fi
        layer=${BASH_REMATCH[1]}
        case ${BASH_REMATCH[2]} in
        'Pull complete' | 'Already exists') layers[$layer]=2 ;;
        'Download complete') layers[$layer]=1 ;;
        *) layers[$layer]=${layers[$layer]:-0} ;;
        esac
        total=0
        for layer in "${!layers[@]}"; do
            total=$((total + layers[$layer]))
        done
        percent=$((50 * total / ${#layers[@]}))
        now=${EPOCHREALTIME/./}
        if ((percent > shown && now - last >= 1000000)); then
            report "{\"status\": \"pulling\", \"percent\": $percent$(beside)}"
            say "pulled $percent %"
            shown=$percent
            last=$now
        fi
    done
}

wait_for_docker() {
    STEP=docker
    await 120 docker info
}

container_exists() {
    docker container inspect "$CONTAINER" >/dev/null 2>&1
}

container_runs() {
    [[ $(timeout --kill-after=5 20 docker container inspect -f '{{.State.Running}}' "$CONTAINER" 2>/dev/null) == true ]]
}

# Host networking, because horovodrun and NCCL pick ports at random; the host's /dev/shm, because NCCL and data loaders
# share memory; no limit on locked memory, and NCCL's stack: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/
# No privilege but those that its sshd and the node program use: providers/engine/requests.py says which is for what.
# Secrets are in memory, never on the disk.
# When the VM is shut down, Docker gives the container as long as it has, instead of 10 s, to upload its checkpoints.
run_container() {
    local flags=() capability index privileges=(--security-opt no-new-privileges --cap-drop ALL)
    for capability in AUDIT_WRITE SETGID SETUID SYS_CHROOT CHOWN DAC_OVERRIDE FOWNER KILL SYS_PTRACE; do
        privileges+=(--cap-add "$capability")
    done
    if [[ $GPU == yes ]]; then
        mapfile -t flags < <(gpu_flags)
    fi
    HVDCLOUD_AUTHORIZED_KEY=$(metadata instance/attributes/hvdcloud-authorized-key)
    HVDCLOUD_NODE=$(metadata instance/name)
    HVDCLOUD_METADATA=$METADATA
    ATTRIBUTES=$(metadata instance/attributes/)
    HVDCLOUD_IDLE=$(optional hvdcloud-idle)
    HVDCLOUD_BUCKET=$(optional hvdcloud-bucket)
    HVDCLOUD_STORAGE_ENDPOINT=$(optional hvdcloud-storage-endpoint)
    HVDCLOUD_SETTLED_AT=$SETTLED_AT
    HVDCLOUD_DATA_SETS=$(optional hvdcloud-data-sets)
    # Which of the nodes it is, its name tells.
    index=${HVDCLOUD_NODE##*-}
    HVDCLOUD_DATA_SETS=${HVDCLOUD_DATA_SETS//'"@INDEX@"'/$index}
    export HVDCLOUD_AUTHORIZED_KEY HVDCLOUD_NODE HVDCLOUD_METADATA HVDCLOUD_IDLE HVDCLOUD_DATA_SETS
    export HVDCLOUD_BUCKET HVDCLOUD_STORAGE_ENDPOINT HVDCLOUD_SETTLED_AT
    : >"$HOME/container"
    limited 300 docker run -d --name "$CONTAINER" --network host --ipc host --stop-timeout 30 \
        --add-host metadata.google.internal:169.254.169.254 \
        "${privileges[@]}" --tmpfs /run/hvdcloud:rw,noexec,nosuid,nodev,size=16m,mode=0700 \
        --ulimit memlock=-1 --ulimit stack=67108864 "${flags[@]}" \
        -e HVDCLOUD_AUTHORIZED_KEY -e HVDCLOUD_NODE -e HVDCLOUD_METADATA -e HVDCLOUD_IDLE -e HVDCLOUD_DATA_SETS \
        -e HVDCLOUD_BUCKET -e HVDCLOUD_STORAGE_ENDPOINT -e HVDCLOUD_SETTLED_AT "$IMAGE"
    # For the shutdown script, which cannot ask a Docker that ends at the same time.
    docker inspect --format '{{.State.Pid}}' "$CONTAINER" >"$HOME/container-pid"
}

# An attribute of the VM; nothing where it has none of this name.
optional() {
    # Without a here-document: where the disk is full, there can be none.
    if [[ $'\n'$ATTRIBUTES$'\n' == *$'\n'"$1"$'\n'* ]]; then
        metadata "instance/attributes/$1"
    fi
}

# What the node program says of itself goes to the serial port; the rest of the container's log stays where it is.
follow_log() {
    local line
    while IFS= read -r line; do
        [[ $line != 'hvdcloud: '* ]] || put "$line"
    done < <(docker logs --follow --since "$1" "$CONTAINER" 2>/dev/null)
}

# follow_container SINCE FOLLOWER: the VM has no other purpose; it goes when the container does, unless there is a failed start
# to look into.
follow_container() {
    local code
    STEP=container
    await_ready "$1"
    code=$(docker wait "$CONTAINER" 2>"$ERRORS")
    # Its last words, but a log that does not end must not keep a VM that costs money.
    timeout 10 tail --pid="$2" -s 0.1 -f /dev/null || true
    say "the container ended with exit status $code"
    if ((code != 0)); then
        docker logs --tail 10 "$CONTAINER" >"$ERRORS" 2>&1
        report_end "exit status $code: $(cat "$ERRORS")"
        was_ready "$1" || give_up
    fi
    end_vm
}

# The container's own word says more than its exit status. It is reported again: what it sent may be lost.
report_end() {
    local own
    own=$(sed -n 's/^hvdcloud-status \({"status": "failed".*}\)$/\1/p' "$ERRORS" | tail -n 1)
    if [[ -n $own ]]; then
        say "failed: $1"
        report "$own"
    else
        report_failure "$1"
    fi
}

# Only from ready on does a container see by itself that nobody uses it. One that neither gets there nor ends is a failure.
await_ready() {
    local deadline=$((SECONDS + READY_SECONDS))
    until was_ready "$1" || ! container_runs; do
        if ((SECONDS >= deadline)); then
            limited 60 docker kill "$CONTAINER" || true
            echo "not ready within $READY_SECONDS s" >"$ERRORS"
            return 1
        fi
        sleep 1
    done
}

was_ready() {
    timeout --kill-after=5 20 docker logs --since "$1" "$CONTAINER" 2>&1 | grep -c '^hvdcloud-status {"status": "ready"' >/dev/null
}
