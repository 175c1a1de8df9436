# The builder of the torch rows of hvdcloud/image/versions.py: compilers, pip, torch and Horovod. What nodes run is copied
# out of it (base.Dockerfile), and a project's requirements.txt is installed with it (project.Dockerfile).
# Only syntax that the classic builder knows: docker-py's build API has no BuildKit.
#
# hvdcloud/image/context.py makes the build context: dockerfiles/ as it stands in the repository, wheels/ with the local
# wheels that the locks name, and ca-bundle.crt (empty where none is needed).
ARG BASE_IMAGE=debian:bookworm-slim

# --- what the builder stages share --------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS tools
RUN apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        g++ libopenmpi-dev make patch python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
# Not /etc/ssl/certs: installing a package that pulls in ca-certificates overwrites that file.
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY dockerfiles/files/pip /usr/local/bin/pip
COPY dockerfiles/locks/tools.txt /opt/locks/
COPY wheels/ /opt/wheels/
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python3 -m venv /opt/tools && pip install -r /opt/locks/tools.txt

# --- torch --------------------------------------------------------------------------------------------------------
FROM tools AS torch
# TORCH_VERSION names a local version ("+cpu"), which PyPI does not carry: what is installed comes from wheels/ or from
# TORCH_INDEX_URL, and can never be PyPI's wheel with its gigabytes of CUDA libraries.
ARG TORCH_VERSION
ARG TORCH_LOCK
ARG TORCH_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY dockerfiles/locks/${TORCH_LOCK} /opt/locks/
# What only a compiler needs is moved out of the way: Horovod's stage has a use for it, the image has not. Test programs
# and tests are a tenth of the rest.
RUN python3 -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
        "torch==${TORCH_VERSION}" -r "/opt/locks/${TORCH_LOCK}" \
    && cd /opt/venv/lib/python3.*/site-packages \
    && mkdir -p /opt/torch-dev && mv torch/include torch/share /opt/torch-dev/ \
    && rm -rf torch/test torch/lib/*_test.so \
    && find torch/bin -mindepth 1 ! -name torch_shm_manager -delete \
    && find . -name '*.a' -delete \
    && find sympy mpmath networkx -type d -name tests -prune -exec rm -rf '{}' +

# --- Horovod ------------------------------------------------------------------------------------------------------
FROM torch AS builder
ARG HOROVOD_VERSION
ARG HOROVOD_SHA256
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY dockerfiles/locks/horovod.txt /opt/locks/
COPY dockerfiles/patches/ /opt/patches/
RUN set -eu; \
    site=$(echo /opt/venv/lib/python3.*/site-packages); \
    ln -s /opt/torch-dev/include /opt/torch-dev/share "$site/torch/"; \
    # setup.py runs under the tools' Python, with their CMake, and finds torch through this.
    echo "$site" > "$(echo /opt/tools/lib/python3.*/site-packages)/venv.pth"; \
    echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" > /tmp/horovod.txt; \
    pip download --no-deps --no-binary :all: --no-build-isolation --dest /tmp/horovod -r /tmp/horovod.txt; \
    cd /tmp/horovod; tar -xzf ./*.tar.gz; cd "horovod-$HOROVOD_VERSION"; \
    for patch in /opt/patches/horovod-"$HOROVOD_VERSION"-*.patch; do patch -p1 < "$patch"; done; \
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1; \
    export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1; \
    # CMake 4 refuses the minimum version that Horovod's CMakeLists.txt asks for.
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j$(nproc)"; \
    PATH="/opt/tools/bin:$PATH" /opt/tools/bin/python setup.py -q bdist_wheel; \
    # Into a place of its own, so that torch and Horovod are two layers of the image; the builder's Python sees both.
    pip --python /opt/venv/bin/python install --prefix /opt/horovod -r /opt/locks/horovod.txt; \
    pip --python /opt/venv/bin/python install --prefix /opt/horovod --no-deps dist/horovod-*.whl; \
    find /opt/horovod -path '*/horovod/*.so' -exec strip --strip-unneeded '{}' +; \
    echo /opt/horovod/lib/python3.*/site-packages > "$site/horovod.pth"; \
    rm -rf /tmp/horovod /tmp/horovod.txt "$site/torch/include" "$site/torch/share"
# The node program's own Python. Here, and not in a stage of its own, because the classic builder would leave that one
# behind as an image without a name.
COPY dockerfiles/locks/node.txt /opt/locks/
RUN python3 -m venv --without-pip /opt/hvdcloud/venv \
    && pip --python /opt/hvdcloud/venv/bin/python install -r /opt/locks/node.txt
