#!/usr/bin/env bash
# demo.sh FOLDER HVDCLOUD: one experiment's whole life on this machine, with words on each step. What an earlier demo left
# in FOLDER is used again, and its results stay.
set -euo pipefail

folder=$(realpath -m "$1")
hvdcloud=$(realpath -s "$2")
mkdir -p "$folder"
cd "$folder"

# Lines of at most 80 columns.
step() {
    printf '\n'
    printf 'demo: %s\n' "$@"
}

# The folders of checkpoints, the newest last.
runs() {
    [ ! -d checkpoints ] || find checkpoints -mindepth 1 -maxdepth 1 -type d | sort
}

if [ -f hvdcloud.yaml ]; then
    earlier=$(runs | wc -l)
    step "1 of 4: the project of an earlier demo is used again, with your changes;" \
        "the results of earlier runs ($earlier in checkpoints/) stay"
else
    step "1 of 4: a new project: train.py trains a small network to read digits," \
        "hvdcloud.yaml says on what: two nodes, containers on this machine"
    "$hvdcloud" init . >/dev/null
fi
# The repository around it ignores the folder, and nodes get nothing that git ignores: it is a repository of its own.
[ -e .git ] || git init --quiet
printf '%s\n' "$folder"

step "2 of 4: the image that both nodes run; the first time, this compiles" \
    "Horovod, which takes about five minutes on two cores"
"$hvdcloud" build

step "3 of 4: hvdcloud launch starts the nodes, trains on both, copies the" \
    "checkpoints to this folder, verifies them and deletes the nodes"
"$hvdcloud" launch

step "4 of 4: hvdcloud report makes a page about the run"
"$hvdcloud" report

newest=$(runs | tail -n 1)
step "done, and nothing runs any more; the results:"
printf '%s\n' "$folder/$newest" "$folder/report-${newest##*/}.html"
step "to go on from here, in this terminal:"
# shellcheck disable=SC2016  # $PATH is the user's
printf 'next: cd %q && PATH=%q:$PATH\n' "$folder" "$(dirname "$hvdcloud")"
printf 'next: %s\n' "hvdcloud up" "hvdcloud run python train.py --epochs 20" "hvdcloud pull" "hvdcloud down"
