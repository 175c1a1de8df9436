"""YAML in which a value is null or the text that was typed: a key's type decides what `0123`, `3.10` or `yes` mean."""

from __future__ import annotations

import contextlib
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """In which a value without quotes is text, or null."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the parent's.
        first: [rule for rule in rules if rule[0].endswith((":null", ":merge"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    close = yaml.SafeLoader.dispose


def read(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError: it is not YAML."""
    with contextlib.closing(Loader(text)) as loader:
        return loader.get_single_data()
