# What nodes run, but for the node program (node.Dockerfile): Debian slim, sshd, the framework from the builder; Horovod and
# Open MPI for run.launcher horovod.
#
# From the builder by its name, not as a stage of one Dockerfile: a pruned build cache does not compile Horovod again. The
# node program, which changes more often than all of this, is in an image of its own: this one can be published.
ARG BUILDER
# As in builder.Dockerfile, by the digest in base-images.txt.
ARG BASE_IMAGE

FROM ${BUILDER} AS builder

# What takes the stacks of ranks. Not in the builder: a newer one must not compile Horovod again.
FROM ${BUILDER} AS stacks
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY wheels/ /opt/wheels/
COPY dockerfiles/locks/stacks.txt /opt/locks/
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    pip --python /opt/hvdcloud/venv/bin/python install --prefix /opt/stacks -r /opt/locks/stacks.txt

FROM ${BASE_IMAGE}
ARG OPEN_MPI
# A host key in an image would be the same one on every node: the entrypoint makes one at a node's first start.
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends \
        ca-certificates iproute2 ${OPEN_MPI} openssh-client openssh-server python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /etc/ssh/ssh_host_* \
    && mkdir -p /run/sshd /workspace /var/lib/hvdcloud \
    # The driver on Container-Optimized OS: the entrypoint looks there, and so do SSH sessions.
    && echo /usr/local/nvidia/lib64 > /etc/ld.so.conf.d/hvdcloud-driver.conf
COPY --from=builder /opt/venv /opt/venv
COPY --from=builder /opt/horovod /opt/venv
COPY --from=builder /opt/hvdcloud /opt/hvdcloud
COPY dockerfiles/files/hvdcloud_requirements.* /opt/venv/lib/python3.11/site-packages/
COPY dockerfiles/files/check_ranks.py /opt/hvdcloud/
ENV PATH=/opt/requirements/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    # For containers that are not started as nodes are.
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64
# What NVIDIA's container toolkit goes by; `void` is a container without GPUs.
ARG NVIDIA_VISIBLE_DEVICES=void
ENV NVIDIA_VISIBLE_DEVICES=${NVIDIA_VISIBLE_DEVICES} NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG CUDA
ARG NCCL
ARG CAPABILITIES
ARG PROOF
# `horovodrun --check-build` alone is no proof (it lists PyTorch without looking): two ranks reduce a tensor, with either
# controller, or by torchrun.
RUN HOME=/tmp/check python -B /opt/hvdcloud/check_ranks.py $PROOF \
        ${CUDA:+--cuda "$CUDA" --nccl "$NCCL" --capabilities "$CAPABILITIES"} \
    && rm -rf /tmp/* /root/.horovod
# For project.Dockerfile, where a rank's Python does not look: whoever pulls this image needs no builder.
COPY --from=builder /opt/tools/lib/python3.11/site-packages/pip /opt/hvdcloud/pip
COPY --from=stacks /opt/stacks /opt/hvdcloud/stacks
