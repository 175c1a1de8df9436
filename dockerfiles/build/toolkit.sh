#!/bin/sh
# Makes /usr/local/cuda ready to compile with: toolkit.sh IMAGE [LOCK]
#
# IMAGE  the donor that it was copied from, for messages
# LOCK   wheels that hold a toolkit, where there is no donor
set -eu
cuda=/usr/local/cuda

if [ -n "${2-}" ]; then
    pip install --no-deps --target /opt/toolkit -r "$2"
    rmdir $cuda
    ln -s /opt/toolkit/nvidia/cu* $cuda
    # nvcc.profile names lib64.
    ln -s lib $cuda/lib64
fi
if [ ! -x $cuda/bin/nvcc ]; then
    echo "$1 has no nvcc in $cuda/bin: the donor has to be an image with a CUDA toolkit, as nvidia/cuda:…-devel-… are" >&2
    exit 1
fi
# Where nvcc does not take Debian's g++, the newest one that it takes; horovod.sh finds it by its name.
newest=$(sed -n 's/^#if __GNUC__ > \([0-9]*\).*/\1/p' $cuda/include/crt/host_config.h)
if [ "$(g++ -dumpversion)" -gt "${newest:-99}" ]; then
    apt-get update -q -o Acquire::Retries=3
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends "g++-$newest"
fi
