#!/usr/bin/env bash
# setup.sh [FOLDER [GROUP]]: a virtual environment with a dependency group of pyproject.toml; with the group `dev`
# also hvdcloud itself, editable.
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
# Dependency groups need pip 25.1.
"$folder/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
if [ "$group" = dev ]; then
    "$folder/bin/python" -m pip install --quiet --editable . --group "$group"
else
    "$folder/bin/python" -m pip install --quiet --group "$group"
fi
say "$folder is complete"
