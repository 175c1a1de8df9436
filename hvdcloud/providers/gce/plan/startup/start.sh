#!/bin/bash
# The steps, at every boot: after a reboot the container is there and only has to be started.
image() {
    if [[ -n $REGISTRY ]]; then
        step login '{"status": "login"}'
        retry 4 log_in
    fi
    step pull "{\"status\": \"pulling\", \"percent\": 0$(beside)}"
    retry 5 pull
}

step host '{"status": "host"}'
prepare_host
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
follow_log "$since" &
follow_container "$since" $!
