#!/bin/sh
# Compiles Horovod from its source package, in this folder: horovod.sh FRAMEWORK PYTHON
# The wheel is in dist/ afterwards. One recipe for the builder image, for images of others and for a machine with a GPU.
#
# PYTHON           runs setup.py: it sees the framework and what locks/tools.txt names, and its folder has their cmake
# HOROVOD_VERSION  of the source package
# HOROVOD_SHA256   of the source package
# PATCHES          names in the folder of patches, without horovod-VERSION- and .patch
# PATCHES_DIR      the folder of patches
# CAPABILITIES     with CUDA: the compute capabilities to compile for ("7.5 8.0"); the last one also as PTX, for newer GPUs
# CUDA_HOME        with CUDA: the toolkit; default: /usr/local/cuda
set -eu
framework=$1 python=$2

echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" > horovod.txt
pip download --no-deps --no-binary :all: --no-build-isolation --dest . -r horovod.txt
tar -xzf ./horovod-*.tar.gz --strip-components 1
for patch in $PATCHES; do
    patch -p1 < "$PATCHES_DIR/horovod-$HOROVOD_VERSION-$patch.patch"
done
# Without debug information, which costs a fifth of the time and would be stripped.
sed -i "s/'RelWithDebInfo'/'Release'/" setup.py

export HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_MXNET=1
case $framework in
    torch) export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 ;;
    tensorflow) export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 ;;
esac
# By itself it takes what the processor that compiles has, and a node may have less: N1 goes down to Sandy
# Bridge. What is compiled with F16C asks the processor before it is used (horovod/common/half.cc).
[ "$(uname -m)" != x86_64 ] || export HOROVOD_BUILD_ARCH_FLAGS='-mf16c -mavx'
# g++ 13 and newer no longer get these headers through others: https://github.com/horovod/horovod/issues/3957
export CXXFLAGS="${CXXFLAGS-} -include cstdint -include stdexcept"
# CMake 4 refuses the minimum version that Horovod's CMakeLists.txt asks for.
export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}"

if [ -n "${CAPABILITIES-}" ]; then
    export CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
    export PATH="$CUDA_HOME/bin:$PATH"
    # The CUDA that the framework is built for, and the NCCL that it loads, or would load from its wheel.
    found=$("$python" - "$framework" << 'END'
import importlib, sys
from pathlib import Path

name = sys.argv[1]
module = importlib.import_module(name)
cuda = module.version.cuda if name == "torch" else module.sysconfig.get_build_info().get("cuda_version")
loaded = [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
wheels = [str(file) for place in sys.path for file in Path(place).glob("nvidia/*/lib/libnccl.so.2")]
nccl = [file for file in loaded + wheels if Path(file).name.startswith("libnccl.so")]
if not cuda or not nccl:
    sys.exit(f"{name} {module.__version__} is built for CUDA {cuda} and has NCCL {nccl}: Horovod needs both")
print(cuda, nccl[0])
END
    )
    cuda=${found%% *} nccl=${found#* }
    toolkit=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    # Horovod gets the toolkit's CUDA runtime as a part of itself, and the framework keeps the one it brings: neither
    # finds the other's, whose version may be another. But a newer runtime would want a newer driver than the framework.
    if [ "${toolkit%%.*}" -gt "${cuda%%.*}" ]; then
        echo "$CUDA_HOME is CUDA $toolkit, and this $framework is built for CUDA $cuda: Horovod would need a newer driver than $framework; take a toolkit of CUDA ${cuda%%.*}, or an older one" >&2
        exit 1
    fi
    echo "Horovod: compiled with CUDA $toolkit, whose runtime becomes part of it, for $framework with CUDA $cuda and $nccl"
    runtime=$(mktemp -d)
    trap 'rm -rf "$runtime"; [ -z "${link-}" ] || rm -f "$link"' EXIT
    # torch asks for "cudart" to be linked: found here first, and not the toolkit's libcudart.so.
    static=$(find -L "$CUDA_HOME" -name libcudart_static.a | head -n 1)
    [ -n "$static" ] || { echo "$CUDA_HOME has no libcudart_static.a" >&2 && exit 1; }
    ln -s "$static" "$runtime/libcudart.a"
    export CMAKE_LIBRARY_PATH="$runtime"
    # The framework's very own NCCL: a wheel has no libnccl.so for the linker.
    if [ ! -e "${nccl%/*}/libnccl.so" ]; then
        link=${nccl%/*}/libnccl.so
        ln -s "${nccl##*/}" "$link"
    fi
    export HOROVOD_NCCL_HOME="${nccl%/lib*/*}" HOROVOD_NCCL_LIB="${nccl%/*}" HOROVOD_NCCL_LINK=SHARED
    export HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME="$CUDA_HOME"
    HOROVOD_BUILD_CUDA_CC_LIST=$(echo "$CAPABILITIES" | tr -d . | tr ' ' ,)
    CUDAARCHS=${HOROVOD_BUILD_CUDA_CC_LIST##*,}
    export HOROVOD_BUILD_CUDA_CC_LIST CUDAARCHS
    # CMake's host compiler for nvcc is the one for everything else.
    newest=$(sed -n 's/^#if __GNUC__ > \([0-9]*\).*/\1/p' "$CUDA_HOME/include/crt/host_config.h")
    if [ "$(g++ -dumpversion | cut -d. -f1)" -gt "${newest:-99}" ]; then
        export CC="gcc-$newest" CXX="g++-$newest"
    fi
fi
PATH="$(dirname "$python"):$PATH" "$python" setup.py -q bdist_wheel
