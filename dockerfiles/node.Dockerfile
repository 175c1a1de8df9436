# A node: the base image, published or built here, and the node program. A project's image is this one and a layer with its
# requirements (project.Dockerfile).
ARG BASE

FROM ${BASE}
COPY dockerfiles/files/sshd_config /etc/hvdcloud/
COPY dockerfiles/files/hvdcloud-node /usr/local/bin/
COPY hvdcloud/ /opt/hvdcloud/venv/lib/python3.11/site-packages/hvdcloud/
# Compiled here, because a node has to answer at once. sshd reads its configuration with a host key where a node has one,
# else it complains, and the key is gone again in the same layer.
RUN /opt/hvdcloud/venv/bin/python -m compileall -q /opt/hvdcloud/venv/lib/python3.11/site-packages/hvdcloud \
    && /opt/hvdcloud/venv/bin/python -I -c 'import hvdcloud.checkpoints, hvdcloud.node, hvdcloud.runs.state, hvdcloud.storage' \
    && key=/etc/hvdcloud/ssh_host_ed25519_key && ssh-keygen -q -t ed25519 -N '' -f "$key" \
    && /usr/sbin/sshd -t -f /etc/hvdcloud/sshd_config && rm "$key" "$key.pub"
WORKDIR /workspace
EXPOSE 2222
ENTRYPOINT ["hvdcloud-node", "entrypoint"]
