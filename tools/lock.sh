#!/usr/bin/env bash
# lock.sh [ARG…]: renews the locks with `uv pip compile`, which gets the ARGs, such as --upgrade or --upgrade-package NAME.
# What a lock has already stays at its version where that still fits.
#
# A lock names versions and the hashes of their files, but no index: any that has those files may serve it. It holds for
# every system, and for every Python from the oldest named here on.
set -euo pipefail
cd "$(dirname "$0")/.."

# lock GROUP PYTHON SOURCE…
lock() {
    local group=$1 python=$2
    shift 2
    .cache/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version "$python" \
        --output-file "tools/locks/$group.txt" "$@" >/dev/null
}

lock dev 3.10 --group dev "$@" pyproject.toml
lock bench 3.10 --group bench "$@"
# tf needs 3.11.
lock terraform 3.11 --group terraform "$@"
lock lock 3.10 --group lock "$@"
lock pip 3.10 --group pip "$@"
