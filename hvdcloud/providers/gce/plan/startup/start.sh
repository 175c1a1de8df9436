#!/bin/bash
# The steps, at every boot: after a reboot the container is there and only has to be started.
step driver '{"status": "driver"}'
prepare_host

step firewall '{"status": "firewall"}'
open_firewall
wait_for_docker

if ! container_exists; then
    if [[ -n $REGISTRY ]]; then
        step login '{"status": "login"}'
        retry 4 log_in
    fi
    step pull '{"status": "pulling", "percent": 0}'
    retry 5 pull
fi

step start '{"status": "starting"}'
since=$(date -u +%Y-%m-%dT%H:%M:%SZ)
if container_exists; then
    limited 120 docker start "$CONTAINER"
else
    run_container
fi
follow_log "$since" &
follow_container "$since" $!
