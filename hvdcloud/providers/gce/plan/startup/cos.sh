#!/bin/bash
# Container-Optimized OS: Docker is there, the driver is not, and all but SSH is shut out.

# The driver is gone after a reboot. For nvidia-smi to run, its folder must not be noexec:
# https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus
driver() {
    retry 3 limited 900 cos-extensions install gpu -- -version="$DRIVER"
    limited 20 mount --bind /var/lib/nvidia /var/lib/nvidia
    limited 20 mount -o remount,exec /var/lib/nvidia
    [[ -e /dev/nvidia0 ]] || { echo 'the driver is installed, but there is no /dev/nvidia0' >"$ERRORS" && return 1; }
    # Else the driver starts anew for each nvidia-smi, which takes seconds where there are 8 GPUs:
    # https://docs.nvidia.com/deploy/driver-persistence/persistence-mode.html
    limited 60 env PATH="/var/lib/nvidia/bin:$PATH" nvidia-smi -pm 1 || say 'GPU persistence mode is off'
}

# Which traffic may reach the VM is decided by the VPC's firewall:
# https://cloud.google.com/container-optimized-os/docs/how-to/firewall
open_firewall() {
    local protocol
    for protocol in tcp udp; do
        iptables -w 30 -C INPUT -p "$protocol" -j ACCEPT 2>/dev/null ||
            limited 60 iptables -w 30 -I INPUT -p "$protocol" -j ACCEPT
    done
}

# There is no NVIDIA container toolkit, so --gpus does not work. The image finds the libraries in /usr/local/nvidia.
gpu_flags() {
    local device
    for device in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
        [[ ! -e $device ]] || printf '%s\n' --device "$device"
    done
    printf '%s\n' --volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro \
        --volume /var/lib/nvidia/bin:/usr/local/nvidia/bin:ro
}
