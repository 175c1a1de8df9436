#!/bin/bash
# The steps, at every boot: after a reboot the container is there and only has to be started.
image() {
    local status
    until log_in_and_pull; do
        status=$?
        refused_for_now || return "$status"
        say "not allowed to pull yet: what hvdcloud setup grants takes minutes to hold; again in 15 s"
        report "{\"status\": \"not allowed to pull yet\"$(beside)}"
        sleep 15
    done
}

# A new login each time. In a condition, where a command's failure ends nothing by itself.
log_in_and_pull() {
    if [[ -n $REGISTRY ]]; then
        step login '{"status": "login"}'
        retry 4 log_in || return
    fi
    step pull "{\"status\": \"pulling\", \"percent\": 0$(beside)}"
    retry 5 pull
}

# https://cloud.google.com/iam/docs/access-change-propagation
refused_for_now() {
    ((EPOCHSECONDS < SETTLED_AT)) && grep -qiE 'denied|unauthorized|forbidden' "$ERRORS"
}

# For a person who reads the serial port: what a container does not see of its machine.
facts() {
    docker info --format 'docker {{.ServerVersion}}, {{.Driver}}, live-restore: {{.LiveRestoreEnabled}}'
    head -v -n 1 /sys/class/net/*/mtu
    cat /etc/hosts
    iptables -w 30 -S INPUT
    [[ $GPU == no ]] || PATH="/var/lib/nvidia/bin:$PATH" nvidia-smi --format=csv \
        --query-gpu=name,driver_version,persistence_mode
}

step host '{"status": "host"}'
open_firewall
wait_for_docker

jobs=()
[[ $GPU == no ]] || jobs+=(driver)
container_exists || jobs+=(image)
# The driver takes about as long as the image, and neither needs the other.
side_by_side "${jobs[@]}"

step start '{"status": "starting"}'
since=$(date -u +%Y-%m-%dT%H:%M:%SZ)
if container_exists; then
    limited 120 docker start "$CONTAINER"
else
    run_container
fi
{ facts 2>&1 || true; } | say_lines
follow_log "$since" &
follow_container "$since" $!
