#!/usr/bin/env bash
# lock.sh [ARG…]: renews tools/locks/ with `uv pip compile`, which gets the ARGs, such as --upgrade or --upgrade-package NAME.
# What a lock has already stays at its version where that still fits. dockerfiles/locks/ keep their versions, which are
# chosen by hand, and get the hashes.
#
# A lock names versions and the hashes of their files, but no index: any that has those files may serve it. It holds for
# every system, and for every Python from the oldest named here on.
set -euo pipefail
cd "$(dirname "$0")/.."

# compile PYTHON ARG…
compile() {
    .cache/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version "$@"
}

# lock GROUP PYTHON SOURCE…
lock() {
    compile "$2" --output-file "tools/locks/$1.txt" "${@:3}" >/dev/null
}

lock dev 3.10 --group dev "$@" pyproject.toml
# tf needs 3.11.
lock terraform 3.11 --group terraform "$@"
lock docs 3.10 --group docs "$@"
lock record 3.10 --group record "$@"
# atheris needs 3.11.
lock fuzz 3.11 --group fuzz "$@"
lock bench 3.10 --group bench "$@"
lock lock 3.10 --group lock "$@"
lock pip 3.10 --group pip "$@"

new=$(mktemp)
trap 'rm -f "$new"' EXIT
for file in dockerfiles/locks/*.txt; do
    case ${file##*/} in
        # For image.base with any Python; the others are for Debian's.
        horovod.txt | node.txt | stacks.txt | tools.txt) python=3.10 ;;
        *) python=3.11 ;;
    esac
    { grep '^#' "$file" && compile "$python" --no-deps --no-annotate "$file"; } >"$new"
    cat "$new" >"$file"
done
