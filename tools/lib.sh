# Shared by the scripts in this folder; to be sourced.
# shellcheck shell=bash

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Runs a command as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root, and there is no sudo; run it as root"
    fi
}

# apt_install PACKAGE…: on Debian and its relatives; anywhere else says what is missing.
apt_install() {
    command -v apt-get >/dev/null || die "please install: $* (no apt-get on this machine)"
    say "installing $* with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# wait_for SECONDS WHAT COMMAND…: polls until COMMAND succeeds; fails once SECONDS have passed.
wait_for() {
    local seconds=$1 what=$2 deadline
    shift 2
    deadline=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            say "waited ${seconds} s for $what"
            return 1
        fi
        sleep 0.2
    done
}
