#!/usr/bin/env bash
# setup.sh [FOLDER [GROUP]]: a virtual environment with what tools/locks/GROUP.txt pins; with the group `dev` also hvdcloud
# itself, editable.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

folder=${1:-.venv}
group=${2:-dev}
python=${PYTHON:-python3}

command -v "$python" >/dev/null || die "there is no $python; install Python 3.10 or newer, or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$("$python" --version) is too old: Python 3.10 or newer is needed; set PYTHON to one"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say "$python comes without venv"
    apt_install python3-venv
fi

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
# Not uv, which is faster but does not know pip's settings: they say where packages come from.
install=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${install[@]}" --require-hashes --requirement tools/locks/pip.txt
"${install[@]}" --require-hashes --requirement "tools/locks/$group.txt"
# By the lock's hatchling.
[ "$group" != dev ] || "${install[@]}" --no-build-isolation --editable .
say "$folder is complete"
