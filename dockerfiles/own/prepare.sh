#!/bin/sh
# Begins to make a node of an image that is not ours: prepare.sh FRAMEWORK DEVICE
#
# Finds the image's Python, and refuses an image that has none that will do; prepare.py does the rest with it.
set -eu

refuse() {
    printf 'hvdcloud: refused: %s\nhvdcloud: next: %s\n' "$1" "$2" >&2
    exit 3
}

# shellcheck source=/dev/null
system=$(. /etc/os-release 2> /dev/null && echo "${PRETTY_NAME:-}") || system=
base="set image.base to an image on Debian or Ubuntu with Python 3.10 or newer"
for loader in /lib/ld-musl-*; do
    [ ! -e "$loader" ] || refuse "it has musl instead of glibc (${system:-unknown system}), and the frameworks have no wheels for that" "$base"
done
command -v apt-get > /dev/null || refuse "it has no apt-get (${system:-unknown system}), so sshd can't be installed" "$base"

# `python` first: it is what run.command names.
python=''
old=''
for name in python python3; do
    found=$(command -v "$name") || continue
    if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        python=$found
        break
    fi
    old="$old $found is $("$found" --version 2>&1)."
done
if [ -z "$python" ]; then
    [ -z "$old" ] || refuse "its Python is too old:${old%.}; 3.10 is needed" "$base"
    refuse "there is no Python on its PATH (${PATH#/opt/own/bin:})" "$base"
fi
exec "$python" -B "$(dirname "$0")/prepare.py" "$@"
