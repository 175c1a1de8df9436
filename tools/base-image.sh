#!/usr/bin/env bash
# Makes sure that the Docker engine has debian:bookworm-slim, which every image of hvdcloud starts from: pulls it by the
# digest in dockerfiles/base-images.txt, or builds it with debootstrap where no registry can be reached. Nothing to do:
# nothing done.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

image=debian:bookworm-slim
suite=${image#debian:}
suite=${suite%-slim}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
security_mirror=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}

docker=(docker)
docker info >/dev/null 2>&1 || docker=(as_root docker)

pinned=$(grep "^$image@" "$(dirname "$0")/../dockerfiles/base-images.txt")

# has REFERENCE [TEMPLATE]: the engine has the image, and the template is not empty for it.
has() {
    [ -n "$("${docker[@]}" image inspect --format "${2:-yes}" "$1" 2>/dev/null)" ]
}

# As hvdcloud/image/plan/base_images.py has it: the tag of what no registry has a digest of was made on this machine.
if has "$image" '{{if or (not .RepoDigests) (index .Config.Labels "hvdcloud-base-image")}}yes{{end}}'; then
    exit 0
fi
if has "$pinned" || { say "pulling $pinned" && timeout 300 "${docker[@]}" pull --quiet "$pinned" >&2; }; then
    has "$image" || "${docker[@]}" tag "$pinned" "$image"
    exit 0
fi

say "$image can't be pulled here; making it with debootstrap from $mirror"
command -v debootstrap >/dev/null || [ -x /usr/sbin/debootstrap ] || apt_install debootstrap
# Not below $HOME or a temporary file system that may be mounted nodev: debootstrap makes device nodes.
work=$(as_root mktemp -d /var/tmp/hvdcloud-base.XXXXXX)
trap 'as_root rm -rf "$work"' EXIT
root=$work/root
as_root env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase "$suite" "$root" "$mirror" >&2

# The rest makes it what the official slim image is: no documentation, no translations, no services that
# start during an installation, no package lists.
as_root tee "$root/etc/apt/sources.list" >/dev/null <<LIST
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security_mirror $suite-security main
LIST
as_root tee "$root/etc/dpkg/dpkg.cfg.d/docker-slim" >/dev/null <<'CONF'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
CONF
as_root tee "$root/etc/apt/apt.conf.d/docker-slim" >/dev/null <<'CONF'
Acquire::GzipIndexes "true";
Acquire::Languages "none";
Apt::AutoRemove::SuggestsImportant "false";
CONF
printf '#!/bin/sh\nexit 101\n' | as_root tee "$root/usr/sbin/policy-rc.d" >/dev/null
as_root chmod +x "$root/usr/sbin/policy-rc.d"
as_root find "$root/usr/share/doc" -type f ! -name copyright -delete
as_root rm -rf "$root"/usr/share/{groff,info,locale,man}/* "$root"/var/lib/apt/lists/* \
    "$root"/var/cache/apt/* "$root"/var/log/* "$root"/etc/hostname "$root"/etc/resolv.conf
as_root tar --one-file-system --numeric-owner --sort=name --directory "$root" --create . |
    "${docker[@]}" import --change 'CMD ["bash"]' --change 'LABEL hvdcloud-base-image=debootstrap' --message "debootstrap $suite, slimmed" - "$image" >/dev/null
say "made $image"
