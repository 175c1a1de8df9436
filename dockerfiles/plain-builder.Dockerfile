# The builder of images without Horovod, for run.launcher torchrun and each: pip, the framework and the node program's
# Python. What builder.Dockerfile says holds here too, but nothing is compiled, so there are no compilers and, with CUDA, no
# image of NVIDIA's: the framework's wheels bring the CUDA libraries. For the same reason it is no image of its own, which
# takes long to write: base.Dockerfile comes below, in one file, and its stages are built beside this one.
ARG BASE_IMAGE
ARG BUILDER=plain

FROM ${BASE_IMAGE} AS pip
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
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Of the tools pip alone.
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    sed -n '/^pip==/,/[^\\]$/p' /opt/locks/tools.txt > /opt/locks/pip.txt \
    && python3 -m venv /opt/tools && pip --no-cache-dir install -r /opt/locks/pip.txt

FROM pip AS agent
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    python3 -m venv --without-pip /opt/hvdcloud/venv \
    && pip --python /opt/hvdcloud/venv/bin/python install -r /opt/locks/node.txt

FROM pip AS plain
ARG FRAMEWORK_PACKAGE
ARG FRAMEWORK_LOCK
ARG FRAMEWORK_ENVIRONMENT
ARG FRAMEWORK_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# base.Dockerfile takes an empty /opt/horovod.
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    /opt/build/framework.sh "$FRAMEWORK_PACKAGE" "/opt/locks/$FRAMEWORK_LOCK" && mkdir /opt/horovod
COPY --from=agent /opt/hvdcloud /opt/hvdcloud

