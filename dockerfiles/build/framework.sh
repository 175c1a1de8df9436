#!/bin/sh
# Installs a framework and what it needs into /opt/venv: framework.sh PACKAGE==VERSION LOCK
#
# FRAMEWORK_INDEX_URL    where wheels of a local version ("+cpu") are, unless the user has them
# FRAMEWORK_ENVIRONMENT  NAME=VALUE …, which every process of /opt/venv's Python needs, unless it has another value
set -eu
package=$1 lock=$2

python3 -m venv --without-pip /opt/venv
# What the lock names and nothing else; the check below says what it lacks. Compiled at the end, on all cores.
pip --python /opt/venv/bin/python install --no-compile --no-deps -r "$lock"
# Of an index of its own nothing is in the lock.
grep -q "^$package " "$lock" || pip --python /opt/venv/bin/python install --no-compile --no-deps \
    ${FRAMEWORK_INDEX_URL:+--extra-index-url "$FRAMEWORK_INDEX_URL"} "$package"
cd /opt/venv/lib/python3.*/site-packages
find . -name '*.a' -delete
# What only a compiler needs is moved out of the way, with its path: Horovod's stage puts it back, the image has no use
# for it. numpy's headers stay: requirements that are compiled ask for them.
mkdir -p /opt/framework-dev
for part in torch/include torch/share tensorflow/include nvidia/*/include; do
    [ -d "$part" ] || continue
    mkdir -p "/opt/framework-dev/${part%/*}"
    mv "$part" "/opt/framework-dev/$part"
done
if [ -d torch ]; then
    # Test programs and tests are a tenth of the rest.
    rm -rf torch/test torch/lib/*_test.so
    find torch/bin -mindepth 1 ! -name torch_shm_manager -delete
    find sympy mpmath networkx -type d -name tests -prune -exec rm -rf '{}' +
elif [ -d tensorflow ]; then
    rm -rf tensorflow/xla_aot_runtime_src
    # What the lock leaves out, with its reasons, nothing may bring in again.
    sed -i '/^Requires-Dist: libclang\>/d' tensorflow*.dist-info/METADATA
    [ -d keras ] || sed -i '/^Requires-Dist: keras\>/d' tensorflow*.dist-info/METADATA
    # PyPI has it under two names: the one that is not here counts as installed too, so that a requirement for it does
    # not put another TensorFlow over this one.
    version=${package#*==}
    case $package in
        tensorflow==*) other=tensorflow_cpu ;;
        *) other=tensorflow ;;
    esac
    mkdir "$other-$version.dist-info"
    echo hvdcloud > "$other-$version.dist-info/INSTALLER"
    cat > "$other-$version.dist-info/METADATA" <<END
Metadata-Version: 2.1
Name: $other
Version: $version
Summary: Stands for $package, which is installed.
Requires-Dist: $package
END
fi
if [ -n "${FRAMEWORK_ENVIRONMENT:-}" ]; then
    {
        echo 'import os'
        for variable in $FRAMEWORK_ENVIRONMENT; do
            echo "os.environ.setdefault('${variable%%=*}', '${variable#*=}')"
        done
    } > hvdcloud_environment.py
    echo 'import hvdcloud_environment' > hvdcloud_environment.pth
fi
# torch has a file for a newer Python, which pip would pass over too.
/opt/venv/bin/python -m compileall -qq -j 0 . || true
pip --python /opt/venv/bin/python check
