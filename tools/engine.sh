#!/usr/bin/env bash
# Makes sure that a Docker engine answers this user: installs one on Debian and starts it, with or without systemd.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

log=/var/log/dockerd.log

if docker info >/dev/null 2>&1; then
    exit 0
fi

if ! command -v dockerd >/dev/null && [ ! -x /usr/sbin/dockerd ]; then
    packages=(docker.io iptables)
    # Since Debian 13 the docker command is a package of its own.
    as_root apt-get update -qq || true
    if apt-cache show docker-cli >/dev/null 2>&1; then packages+=(docker-cli); fi
    apt_install "${packages[@]}"
fi

if ! as_root docker info >/dev/null 2>&1; then
    if [ -d /run/systemd/system ]; then
        say "starting Docker with systemctl"
        as_root systemctl start docker
    else
        # An engine that was killed leaves its process ids behind; when another process has one by now, the next engine
        # takes it for the first and refuses to start.
        if ! pgrep -x dockerd >/dev/null; then
            as_root rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
        fi
        say "starting dockerd; it writes to $log"
        # shellcheck disable=SC2016  # $1 is the inner shell's
        as_root sh -c 'PATH="$PATH:/usr/sbin:/sbin" setsid dockerd >"$1" 2>&1 </dev/null &' sh "$log"
    fi
    if ! wait_for 60 "the Docker engine to answer" as_root docker info; then
        as_root tail -n 20 "$log" >&2 || true
        die "the Docker engine did not start"
    fi
fi

docker info >/dev/null 2>&1 ||
    die "the Docker engine runs, but not for this user: sudo usermod -aG docker $(id -un), then log in again"
say "the Docker engine answers"
