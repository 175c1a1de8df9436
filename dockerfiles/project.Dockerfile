# A project's image: the base image and one layer with what its requirements.txt installs. pip, the compilers, the local
# wheels and the CA bundle stay in the throw-away stage. `builder` and `base` come from builder.Dockerfile and
# base.Dockerfile, or from own-builder.Dockerfile and own.Dockerfile.
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
COPY project/ /opt/project/
# What the image has already counts as installed; the constraints keep a requirement from replacing torch (and with it
# bringing in CUDA), Horovod, which is compiled against exactly this torch, or numpy's major version.
RUN mkdir -p /opt/requirements \
    && pip --python "$PYTHON" install ${FRAMEWORK_INDEX_URL:+--extra-index-url "$FRAMEWORK_INDEX_URL"} \
        --prefix /opt/requirements -c /opt/constraints.txt -r "/opt/project/$REQUIREMENTS"

FROM ${BASE}
COPY --from=requirements /opt/requirements /opt/requirements
