#!/bin/bash
# Deep Learning VM, an Ubuntu: the driver is there; Docker and NVIDIA's container toolkit may have to be installed.

prepare_host() {
    if ! command -v docker >/dev/null; then
        retry 5 apt_get update
        retry 5 apt_get install docker.io
    fi
    [[ $GPU == yes ]] || return 0
    # The hook is what --gpus needs; nvidia-ctk alone may come from the -base package.
    command -v nvidia-container-runtime-hook >/dev/null || install_toolkit
    limited 60 nvidia-ctk runtime configure --runtime=docker
    limited 120 systemctl restart docker
}

# The image has it; its modules may still be loading.
driver() {
    await 300 nvidia-smi
}

# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
install_toolkit() {
    local url=https://nvidia.github.io/libnvidia-container key=/usr/share/keyrings/nvidia-container-toolkit.gpg version
    # A second entry with another key would make apt refuse both.
    if ! grep -rqs "$url" /etc/apt/sources.list /etc/apt/sources.list.d; then
        curl -sS -f -L --connect-timeout 10 --max-time 60 --retry 5 --retry-all-errors "$url/gpgkey" 2>"$ERRORS" |
            gpg --batch --yes --dearmor -o "$key"
        # shellcheck disable=SC2016 # $(ARCH) is for apt to fill in
        printf 'deb [signed-by=%s] %s/stable/deb/$(ARCH) /\n' "$key" "$url" \
            >/etc/apt/sources.list.d/nvidia-container-toolkit.list
    fi
    retry 5 apt_get update
    # Images hold the -base package at a version; the rest has to match it.
    # shellcheck disable=SC2016 # ${Version} is for dpkg-query to fill in
    version=$(dpkg-query -W -f='${Version}' nvidia-container-toolkit-base 2>/dev/null || true)
    retry 5 apt_get install "nvidia-container-toolkit${version:+=$version}"
}

# Unattended upgrades hold apt's lock at the first boot.
apt_get() {
    limited 900 env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@"
}

# No firewall of its own.
open_firewall() {
    :
}

gpu_flags() {
    printf '%s\n' --gpus all
}
