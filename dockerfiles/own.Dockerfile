# image.base as a node: its image, sshd, the node program, for run.launcher horovod also Open MPI and Horovod where it has
# none. Nothing else.
# `builder` is the image of own-builder.Dockerfile.
ARG BUILDER
ARG OWN

FROM ${BUILDER} AS builder

# As in base.Dockerfile.
FROM ${BUILDER} AS stacks
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY wheels/ /opt/wheels/
COPY dockerfiles/locks/stacks.txt /opt/locks/
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    pip --python /opt/hvdcloud/venv/bin/python install --prefix /opt/stacks -r /opt/locks/stacks.txt

FROM ${OWN}
USER root
SHELL ["/bin/sh", "-c"]
COPY --from=builder /opt/horovod /opt/horovod
COPY --from=builder /opt/hvdcloud /opt/hvdcloud
COPY dockerfiles/files/hvdcloud_requirements.* dockerfiles/own/install.py /opt/hvdcloud/
# First what run.command finds in the image without us.
ENV PATH=/opt/requirements/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:/opt/horovod/bin:/opt/hvdcloud/bin
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    /opt/hvdcloud/python -B /opt/hvdcloud/install.py
COPY --from=stacks /opt/stacks /opt/hvdcloud/stacks
COPY dockerfiles/files/sshd_config /etc/hvdcloud/
COPY dockerfiles/files/hvdcloud-node /usr/local/bin/
COPY dockerfiles/files/check_ranks.py dockerfiles/own/check_node.py /opt/hvdcloud/
COPY hvdcloud/ /opt/hvdcloud/program/hvdcloud/
ARG PROOF
ARG CAPABILITY
RUN /opt/hvdcloud/venv/bin/python -m compileall -q /opt/hvdcloud/program \
    && /opt/hvdcloud/venv/bin/python -I -c 'import hvdcloud.checkpoints, hvdcloud.node, hvdcloud.runs.state, hvdcloud.storage' \
    && HOME=/tmp/hvdcloud python -B /opt/hvdcloud/check_node.py "$PROOF" ${CAPABILITY:+--gpu "$CAPABILITY"} \
    && rm -rf /tmp/hvdcloud
WORKDIR /workspace
EXPOSE 2222
HEALTHCHECK NONE
CMD []
ENTRYPOINT ["/usr/local/bin/hvdcloud-node", "entrypoint"]
