# What image.base lacks to be a node, made in a copy of it that is no image of any node: the node program's Python, and for
# run.launcher horovod compilers, and Horovod where there is none. own/prepare.py says what is done and what is refused.
ARG OWN

FROM ${OWN}
USER root
SHELL ["/bin/sh", "-c"]
WORKDIR /
# Not /etc/ssl/certs: installing a package that pulls in ca-certificates overwrites that file.
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY wheels/ /opt/wheels/
COPY dockerfiles/build/pip /opt/own/bin/
COPY dockerfiles/build/ dockerfiles/own/ /opt/own/
COPY dockerfiles/locks/ /opt/own/locks/
COPY dockerfiles/patches/ /opt/own/patches/
ENV PATH=/opt/own/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
ARG FRAMEWORK
ARG DEVICE
ARG HOROVOD_VERSION
ARG HOROVOD_SHA256
ARG HOROVOD_PATCHES
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    /opt/own/prepare.sh "$FRAMEWORK" "$DEVICE"
