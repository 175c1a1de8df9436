#!/usr/bin/env bash
# Makes sure that a Docker engine answers this user, and that a docker command can build with its BuildKit: installs both
# on Debian and starts the engine, with or without systemd.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

log=/var/log/dockerd.log
# Where the Makefile looks for a docker command before all others.
client=$(cd "$(dirname "$0")/.." && pwd)/.cache/docker

# builds DOCKER: it has buildx, or BuildKit in itself, as from 20.10 to 22.
builds() {
    "$1" buildx version >/dev/null 2>&1 || DOCKER_BUILDKIT=1 "$1" build --help 2>/dev/null | grep -q -e --progress
}

# By Debian's docker-buildx; Debian 12 has none, but a client with BuildKit in it.
bring_buildkit() {
    command -v apt-get >/dev/null || die "please install docker-buildx: images are built with BuildKit"
    as_root apt-get update -qq || true
    if apt-cache show docker-buildx >/dev/null 2>&1; then
        apt_install docker-buildx
        if builds docker; then return; fi
    fi
    local work
    work=$(mktemp -d)
    # shellcheck disable=SC2064  # $work is this function's
    trap "rm -rf '$work'" EXIT
    say "this machine's docker command has no BuildKit; taking Debian's into $client"
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root docker.io && dpkg-deb --extract docker.io_*.deb .)
    mkdir -p "$client"
    mv "$work/usr/bin/docker" "$client/docker"
    builds "$client/docker" || die "please install docker-buildx: images are built with BuildKit"
}

engine() {
    if docker info >/dev/null 2>&1; then
        return
    fi
    if ! command -v dockerd >/dev/null && [ ! -x /usr/sbin/dockerd ]; then
        local packages=(docker.io iptables) package
        as_root apt-get update -qq || true
        # Since Debian 13 the docker command and its BuildKit are packages of their own.
        for package in docker-cli docker-buildx; do
            if apt-cache show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
        done
        apt_install "${packages[@]}"
    fi
    if ! as_root docker info >/dev/null 2>&1; then
        if [ -d /run/systemd/system ]; then
            say "starting Docker with systemctl"
            as_root systemctl start docker
        else
            # An engine that was killed leaves its process ids behind; when another process has one by now, the next
            # engine takes it for the first and refuses to start.
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
}

engine
builds docker || builds "$client/docker" || bring_buildkit
