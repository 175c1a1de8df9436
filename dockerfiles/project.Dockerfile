# A project's image: the node's and one layer with what its requirements.txt installs. Compilers, the local wheels and the
# CA bundle stay in the stage that is thrown away. `base` comes from node.Dockerfile and is its own builder, with the pip
# that it brings; or from own.Dockerfile, and `builder` from own-builder.Dockerfile.
ARG BUILDER
ARG BASE

FROM ${BUILDER} AS requirements
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY wheels/ /opt/wheels/
ARG FRAMEWORK_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG REQUIREMENTS
# Of an image that is not ours, another.
ARG PYTHON=/opt/venv/bin/python
COPY constraints.txt /opt/constraints.txt
COPY dockerfiles/build/pip /usr/local/bin/pip
COPY dockerfiles/requirements/tool /opt/late/
# Where a node has the project: `-e .` installs a link to it.
COPY project/ /workspace/
WORKDIR /workspace
# What the image has already counts as installed; the constraints keep a requirement from replacing torch (and with it
# bringing in CUDA), Horovod, which is compiled against exactly this torch, or numpy's major version. A repository that is
# installed with -e is kept in the image, without what git knows of it, such as a password in its URL.
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    mkdir -p /opt/requirements \
    && if [ ! -e /opt/tools ]; then \
        python3 -m venv --without-pip /opt/tools && cp -r /opt/hvdcloud/pip /opt/tools/lib/python3*/site-packages/; \
    fi \
    && for name in git make cc c++ gcc g++ $(uname -m)-linux-gnu-gcc $(uname -m)-linux-gnu-g++; do \
        ln -s tool "/opt/late/$name"; \
    done \
    && export LC_ALL=C.UTF-8 PIP_SRC=/opt/requirements/src PATH="$PATH:/opt/late" \
    && if [ -s /opt/ca-bundle.crt ]; then export GIT_SSL_CAINFO=/opt/ca-bundle.crt; fi \
    && pip --python "$PYTHON" install ${FRAMEWORK_INDEX_URL:+--extra-index-url "$FRAMEWORK_INDEX_URL"} \
        --prefix /opt/requirements -c /opt/constraints.txt -r "$REQUIREMENTS" \
    && rm -rf /opt/requirements/src/*/.git \
    && compiled=$(find . -name '*.so' -newer "$REQUIREMENTS" ! -path '*/build/*') \
    && if [ -n "$compiled" ]; then \
        echo "ERROR: -e compiles $compiled in the project's folder, which is no part of the image: install it without -e" \
        && exit 1; \
    fi

FROM ${BASE}
COPY --from=requirements /opt/requirements /opt/requirements
