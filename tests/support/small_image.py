"""A small image, and the steps that build it."""

from __future__ import annotations

import io
from typing import Any

from hvdcloud.image.plan.context import Context, Entry, Step

NAME = "hvdcloud/t-buildkit"

SMALL = """\
FROM debian:bookworm-slim AS thrown-away
COPY secret /opt/secret
RUN mkdir /opt/made && echo made > /opt/made/here && chmod 640 /opt/made/here && chown 7:8 /opt/made/here
FROM debian:bookworm-slim
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \\
    apt-get update -q -o Acquire::Retries=3 \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends less \\
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /var/cache/ldconfig/aux-cache
ARG WORD
COPY --from=thrown-away /opt/made /opt/made
COPY files/ /opt/files/
ENV PATH=/opt/bin:$PATH WORD=$WORD
RUN echo "$WORD" > /word && mkdir -p /opt/empty && ln -s empty /opt/link
WORKDIR /workspace
EXPOSE 2222
ENTRYPOINT ["less", "/word"]
"""


def packed(context: Context) -> bytes:
    """What is sent to a builder."""
    file = io.BytesIO()
    context.write(file)
    return file.getvalue()


def small(*, dockerfile: str = SMALL, reference: str = f"{NAME}:1", **more: Any) -> Step:
    entries = (
        Entry(path="dockerfiles/small.Dockerfile", content=dockerfile.encode()),
        Entry(path="files/program", content=b"#!/bin/sh\n", executable=True),
        Entry(path="files/data", content=b"data\n"),
    )
    secret = Entry(path="secret", content=b"hunter2-buildkit")
    return Step(
        reference=reference,
        what="a small image",
        context=Context(hashed=entries, unhashed=(secret,)),
        dockerfile="dockerfiles/small.Dockerfile",
        **more,
    )
