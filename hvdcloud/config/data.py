"""`data:` in hvdcloud.yaml: the data sets that are on every node before a run's first step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, model_validator

from hvdcloud.config.section import Section
from hvdcloud.config.types import StorageUrl, written_as

_NAME = r"[a-z][-_a-z0-9]{0,62}"

DataName = Annotated[
    str, written_as(_NAME, "the name of a data set: at most 63 of a-z, 0-9, '-' and '_', a letter first")
]


class DataConfig(Section):
    """A data set, by its name: a folder of that name in `$HVDCLOUD_DATA` of every rank.

    `NAME: gs://BUCKET/PREFIX` alone is short for `NAME: {source: gs://BUCKET/PREFIX}`.
    """

    source: StorageUrl = Field(
        examples=["gs://my-bucket/train"],
        description="with provider gce, gs://BUCKET[/PREFIX], whose objects each node fetches once; with local, "
        "file:///DIR, a folder of this machine that is mounted into the nodes; one outside of the project's only in "
        "the environment",
    )
    per_node: Literal["all", "shard"] = Field(
        default="all",
        description="what a node gets: all files, or its share of them: of N nodes with which a run starts, the one at "
        "place i gets the files i, i+N, i+2N… by name",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_the_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _a_folder_is_mounted_whole(self) -> DataConfig:
        if self.per_node == "shard" and self.folder is not None:
            raise ValueError("per_node: shard needs a gs:// source; a folder is mounted, and costs no node anything")
        return self

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that is mounted; None: the source is a bucket."""
        return Path(unquote(urlsplit(self.source).path)) if self.source.startswith("file://") else None


def text_allowed(schema: dict[str, Any]) -> None:
    """The JSON Schema of `data`, where a data set may also be the text of its source."""
    schema["additionalProperties"] = {"anyOf": [{"type": "string"}, schema["additionalProperties"]]}
    schema["propertyNames"] = {"pattern": f"^{_NAME}$"}


def loops(data: Mapping[str, DataConfig], *, bucket: str | None) -> Iterator[str]:
    """Why a data set cannot be where the checkpoints go: each run's would be the next run's data.

    Args:
        bucket: checkpoints.bucket.
    """
    for name, each in data.items() if bucket else ():
        if f"{bucket}/".startswith(f"{each.source}/"):
            yield f"data.{name} is {each.source}, and checkpoints.bucket, {bucket}, is in it; take another prefix"


def refused_data(
    data: Mapping[str, DataConfig], *, provider: str, bucket: str | None
) -> Iterable[tuple[tuple[str, ...], str, str]]:
    """Key, reason and way out of each data set that the provider's nodes cannot have."""
    for name, each in data.items():
        if provider == "ssh":
            source = "is in Cloud Storage" if each.folder is None else "is a folder of this machine"
            ways = "keep it in the project's folder, which runs send, or have run.command fetch it; or provider: gce"
            yield ("data", name), f"{each.source} {source}, and nodes of provider ssh cannot read it", ways
        elif provider == "local" and each.folder is None:
            copy = f"gcloud storage rsync --recursive {each.source} DIR, and data.{name}: file:///DIR; or provider: gce"
            yield ("data", name), f"{each.source} is in Cloud Storage, which only nodes of provider gce can read", copy
        elif provider == "gce" and each.folder is not None:
            base = "BUCKET" if bucket is None or not bucket.startswith("gs://") else bucket.split("/")[2]
            why = f"{each.source} is a folder of this machine, and nodes of provider gce do not have it"
            push = f"gcloud storage rsync --recursive {each.folder} gs://{base}/data/{name}; name that as the source"
            yield ("data", name), why, push


def refused_bucket(bucket: str | None, *, provider: str) -> Iterable[tuple[tuple[str, ...], str, str]]:
    """Key, reason and way out of checkpoints.bucket, where the provider's nodes cannot write there."""
    if provider != "gce" and bucket is not None and bucket.startswith("gs://"):
        why = f"{bucket} is in Cloud Storage, where only nodes of provider gce can write"
        copy = (
            "provider: gce; or leave it out: checkpoints go into a folder of this machine, which hvdcloud status "
            f"names, and gcloud storage rsync --recursive FOLDER {bucket} copies them"
        )
        yield ("checkpoints", "bucket"), why, copy
