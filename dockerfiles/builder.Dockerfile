# The builder of the rows of hvdcloud/image/plan/versions.py: compilers, pip, the framework and Horovod. What nodes run is
# copied out of it (base.Dockerfile).
#
# apt's packages and pip's downloads are in BuildKit's caches. A wheel that pip makes of a source package is in none: it may
# fit nothing but the framework and the numpy that are here now.
#
# hvdcloud/image/plan/context.py makes the build context: dockerfiles/ as it stands in the repository, wheels/ with the local
# wheels that the locks name, and ca-bundle.crt (empty where none is needed).
#
# Images to start from have no default here: base-images.txt has their digests.
ARG BASE_IMAGE
# The image with the CUDA toolkit that compiles Horovod, in /usr/local/cuda; without CUDA the stage below, which has none.
ARG CUDA_DONOR=tools

# --- what the builder stages share --------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS tools
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends \
        g++ libopenmpi-dev make patch python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* && mkdir -p /usr/local/cuda
# Not /etc/ssl/certs: installing a package that pulls in ca-certificates overwrites that file.
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY dockerfiles/build/pip /usr/local/bin/pip
COPY dockerfiles/locks/tools.txt /opt/locks/
COPY wheels/ /opt/wheels/
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Debian's pip has its cache elsewhere.
RUN python3 -m venv /opt/tools && pip --no-cache-dir install -r /opt/locks/tools.txt

# --- the framework ------------------------------------------------------------------------------------------------
FROM tools AS framework
# A row for CPUs names a local version ("+cpu"), which PyPI does not carry: what is installed comes from wheels/ or from
# FRAMEWORK_INDEX_URL, and can never be PyPI's wheel with its gigabytes of CUDA libraries.
ARG FRAMEWORK_PACKAGE
ARG FRAMEWORK_LOCK
ARG FRAMEWORK_ENVIRONMENT
ARG FRAMEWORK_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY dockerfiles/build/framework.sh /opt/build/
COPY dockerfiles/locks/${FRAMEWORK_LOCK} /opt/locks/
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    /opt/build/framework.sh "$FRAMEWORK_PACKAGE" "/opt/locks/$FRAMEWORK_LOCK"

# --- Horovod ------------------------------------------------------------------------------------------------------
FROM ${CUDA_DONOR} AS donor

FROM framework AS horovod
ARG FRAMEWORK
ARG HOROVOD_VERSION
ARG HOROVOD_SHA256
ARG HOROVOD_PATCHES
# With CUDA: what Horovod is compiled for, and the wheels with the toolkit where there is no donor.
ARG CAPABILITIES
ARG CUDA_DONOR
ARG TOOLKIT_LOCK
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY --from=donor /usr/local/cuda/ /usr/local/cuda/
COPY dockerfiles/build/ /opt/build/
COPY dockerfiles/locks/horovod.txt dockerfiles/locks/toolkit-*.txt /opt/locks/
COPY dockerfiles/patches/ /opt/patches/
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    [ -z "$CAPABILITIES" ] || /opt/build/toolkit.sh "$CUDA_DONOR" ${TOOLKIT_LOCK:+"/opt/locks/$TOOLKIT_LOCK"}
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    : compile Horovod, once, about 4 minutes; set -eu; \
    site=$(echo /opt/venv/lib/python3.*/site-packages); \
    cp -rs /opt/framework-dev/. "$site/"; \
    # setup.py runs under the tools' Python, with their CMake, and finds the framework through this.
    echo "$site" > "$(echo /opt/tools/lib/python3.*/site-packages)/venv.pth"; \
    mkdir /tmp/horovod; cd /tmp/horovod; \
    PATCHES="$HOROVOD_PATCHES" PATCHES_DIR=/opt/patches /opt/build/horovod.sh "$FRAMEWORK" /opt/tools/bin/python; \
    # Into a place of its own, so that the framework and Horovod are two layers of the image.
    pip --python /opt/venv/bin/python install --prefix /opt/horovod -r /opt/locks/horovod.txt; \
    pip --python /opt/venv/bin/python install --prefix /opt/horovod --no-deps dist/horovod-*.whl; \
    find /opt/horovod -path '*/horovod/*.so' -exec strip --strip-unneeded '{}' +

# --- the builder --------------------------------------------------------------------------------------------------
# Without the CUDA toolkit.
FROM framework AS builder
COPY --from=horovod /opt/horovod /opt/horovod
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY dockerfiles/locks/node.txt /opt/locks/
# The builder's Python sees both.
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    echo /opt/horovod/lib/python3.*/site-packages > "$(echo /opt/venv/lib/python3.*/site-packages)/horovod.pth" \
    && python3 -m venv --without-pip /opt/hvdcloud/venv \
    && pip --python /opt/hvdcloud/venv/bin/python install -r /opt/locks/node.txt
