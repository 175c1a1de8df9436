#!/bin/sh
# Installs a framework and what it needs into /opt/venv: framework.sh PACKAGE==VERSION LOCK
#
# FRAMEWORK_INDEX_URL  where wheels of a local version ("+cpu") are, unless the user has them
set -eu

python3 -m venv --without-pip /opt/venv
pip --python /opt/venv/bin/python install ${FRAMEWORK_INDEX_URL:+--extra-index-url "$FRAMEWORK_INDEX_URL"} "$1" -r "$2"
cd /opt/venv/lib/python3.*/site-packages
find . -name '*.a' -delete
if [ -d torch ]; then
    # What only a compiler needs is moved out of the way: Horovod's stage has a use for it, the image has not. Test
    # programs and tests are a tenth of the rest.
    mkdir -p /opt/framework-dev
    mv torch/include torch/share /opt/framework-dev/
    rm -rf torch/test torch/lib/*_test.so
    find torch/bin -mindepth 1 ! -name torch_shm_manager -delete
    find sympy mpmath networkx -type d -name tests -prune -exec rm -rf '{}' +
fi
