"""YAML in which a value is the text that was typed: a key's type decides what `0123`, `3.10`, `yes` or `~` mean."""

from __future__ import annotations

import contextlib
from typing import Any

import yaml


class Null(str):
    """What says null where a key's type knows it, and is text elsewhere: `null`, `~`, nothing."""

    __slots__ = ()


class Loader(yaml.SafeLoader):
    """In which a value without quotes is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the parent's.
        first: [rule for rule in rules if rule[0].endswith((":null", ":merge"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    close = yaml.SafeLoader.dispose


def _typed(loader: Loader, node: Any) -> str:
    text: str = loader.construct_scalar(node)
    return Null(text) if node.tag.endswith(":null") else text


for _tag in ("null", "merge", "bool", "int", "float", "timestamp"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _typed)


def read(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError: it is not YAML."""
    with contextlib.closing(Loader(text)) as loader:
        return loader.get_single_data()
