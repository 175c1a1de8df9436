# What image.dockerfile has made, once it is proven to be still a node.
ARG IMAGE

FROM ${IMAGE}
USER root
SHELL ["/bin/sh", "-c"]
COPY dockerfiles/files/check_ranks.py dockerfiles/own/check_node.py /opt/hvdcloud/
ARG PROOF
# With the Python that is left, so that it can say what is missing.
RUN python=$(command -v python || command -v python3 || echo /opt/hvdcloud/venv/bin/python) \
    && HOME=/tmp/hvdcloud "$python" -B /opt/hvdcloud/check_node.py $PROOF && rm -rf /tmp/hvdcloud
WORKDIR /workspace
HEALTHCHECK NONE
CMD []
ENTRYPOINT ["/usr/local/bin/hvdcloud-node", "entrypoint"]
