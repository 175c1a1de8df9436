# The images of the torch rows of hvdcloud/image/versions.py. Two of the stages get a name in the engine:
#   builder   compilers, pip, torch and Horovod: what a project's requirements.txt is installed with
#   base      what nodes run; a project's image is this one and a layer with its requirements (project.Dockerfile)
# Only syntax that the classic builder knows: docker-py's build API has no BuildKit.
#
# hvdcloud/image/context.py makes the build context: dockerfiles/ as it stands in the repository, hvdcloud/ with the node
# program only, wheels/ with the local wheels that the locks name, and ca-bundle.crt (empty where none is needed).
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
# What only a compiler needs is moved out of the way: Horovod's stage has a use for it, the image has not.
RUN python3 -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
        "torch==${TORCH_VERSION}" -r "/opt/locks/${TORCH_LOCK}" \
    && cd /opt/venv/lib/python3.*/site-packages/torch \
    && mkdir -p /opt/torch-dev && mv include share /opt/torch-dev/ \
    && rm -rf test bin/*Test lib/*_test.so && find . -name '*.a' -delete

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
    # Into a place of its own first, so that torch and Horovod are two layers of the image.
    pip --python /opt/venv/bin/python install --prefix /opt/horovod -r /opt/locks/horovod.txt; \
    pip --python /opt/venv/bin/python install --prefix /opt/horovod --no-deps dist/horovod-*.whl; \
    find /opt/horovod -path '*/horovod/*.so' -exec strip --strip-unneeded '{}' +; \
    cp -a /opt/horovod/. /opt/venv/; \
    rm -rf /tmp/horovod /tmp/horovod.txt
# The node program's own Python. Here, and not in a stage of its own, because the classic builder would leave that one
# behind as an image without a name.
COPY dockerfiles/locks/node.txt /opt/locks/
RUN python3 -m venv --without-pip /opt/hvdcloud/venv \
    && pip --python /opt/hvdcloud/venv/bin/python install -r /opt/locks/node.txt

# --- the image ----------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS base
# A host key in an image would be the same one on every node: the entrypoint makes one at a node's first start.
RUN apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        ca-certificates iproute2 openmpi-bin openssh-client openssh-server python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /etc/ssh/ssh_host_* \
    && mkdir -p /run/sshd /workspace /var/lib/hvdcloud
COPY --from=torch /opt/venv /opt/venv
COPY --from=builder /opt/horovod /opt/venv
COPY --from=builder /opt/hvdcloud /opt/hvdcloud
COPY dockerfiles/files/hvdcloud_requirements.* /opt/venv/lib/python3.11/site-packages/
COPY dockerfiles/files/check_horovod.py /opt/hvdcloud/
ENV PATH=/opt/requirements/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8
# `horovodrun --check-build` alone is no proof (it lists PyTorch without looking): two ranks reduce a tensor, with either
# controller.
RUN HOME=/tmp/check python -B /opt/hvdcloud/check_horovod.py gloo mpi && rm -rf /tmp/* /root/.horovod
COPY dockerfiles/files/sshd_config /etc/hvdcloud/
COPY dockerfiles/files/hvdcloud-node /usr/local/bin/
COPY hvdcloud/ /opt/hvdcloud/venv/lib/python3.11/site-packages/hvdcloud/
# Compiled here, because a node has to answer at once.
RUN /opt/hvdcloud/venv/bin/python -m compileall -q /opt/hvdcloud/venv/lib/python3.11/site-packages/hvdcloud \
    && /opt/hvdcloud/venv/bin/python -I -c 'import hvdcloud.checkpoints, hvdcloud.node' \
    && ssh-keygen -q -t ed25519 -N '' -f /tmp/key && /usr/sbin/sshd -t -f /etc/hvdcloud/sshd_config -h /tmp/key && rm /tmp/key*
WORKDIR /workspace
EXPOSE 2222
ENTRYPOINT ["hvdcloud-node", "entrypoint"]
