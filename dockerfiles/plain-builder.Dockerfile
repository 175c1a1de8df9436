# The builder of images without Horovod, for run.launcher torchrun and each: pip, the framework and the node program's
# Python. What builder.Dockerfile says holds here too, but nothing is compiled, so there are no compilers and, with CUDA, no
# image of NVIDIA's: the framework's wheels bring the CUDA libraries.
ARG BASE_IMAGE

FROM ${BASE_IMAGE} AS builder
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends \
        python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY dockerfiles/build/pip /usr/local/bin/pip
COPY dockerfiles/build/framework.sh /opt/build/
COPY dockerfiles/locks/ /opt/locks/
COPY wheels/ /opt/wheels/
ARG FRAMEWORK_PACKAGE
ARG FRAMEWORK_LOCK
ARG FRAMEWORK_ENVIRONMENT
ARG FRAMEWORK_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Of the tools pip alone. base.Dockerfile takes an empty /opt/horovod.
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    sed -n '/^pip==/,/[^\\]$/p' /opt/locks/tools.txt > /opt/locks/pip.txt \
    && python3 -m venv /opt/tools && pip --no-cache-dir install -r /opt/locks/pip.txt \
    && /opt/build/framework.sh "$FRAMEWORK_PACKAGE" "/opt/locks/$FRAMEWORK_LOCK" \
    && python3 -m venv --without-pip /opt/hvdcloud/venv \
    && pip --python /opt/hvdcloud/venv/bin/python install -r /opt/locks/node.txt \
    && mkdir /opt/horovod
