#!/bin/sh
# Compiles Horovod from its source package, in this folder: horovod.sh FRAMEWORK PYTHON
# The wheel is in dist/ afterwards. One recipe for the builder image, for images of others and for a machine with a GPU.
#
# PYTHON           runs setup.py: it sees the framework and what locks/tools.txt names, and its folder has their cmake
# HOROVOD_VERSION  of the source package
# HOROVOD_SHA256   of the source package
# PATCHES          names in the folder of patches, without horovod-VERSION- and .patch
# PATCHES_DIR      the folder of patches
set -eu
framework=$1 python=$2

echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" > horovod.txt
pip download --no-deps --no-binary :all: --no-build-isolation --dest . -r horovod.txt
tar -xzf ./horovod-*.tar.gz --strip-components 1
for patch in $PATCHES; do
    patch -p1 < "$PATCHES_DIR/horovod-$HOROVOD_VERSION-$patch.patch"
done

export HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_MXNET=1
case $framework in
    torch) export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 ;;
    tensorflow) export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 ;;
esac
# CMake 4 refuses the minimum version that Horovod's CMakeLists.txt asks for.
export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j$(nproc)"
PATH="$(dirname "$python"):$PATH" "$python" setup.py -q bdist_wheel
