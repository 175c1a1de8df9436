#!/usr/bin/env bash
# Makes sure that Debian's docker-registry is installed. The tests start one of their own; as a service it is not needed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

if command -v docker-registry >/dev/null; then
    exit 0
fi
apt_install docker-registry
if [ -d /run/systemd/system ]; then
    as_root systemctl disable --now docker-registry
fi
