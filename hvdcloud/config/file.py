"""hvdcloud.yaml → models (model.py).

Flags beat environment (`HVDCLOUD_…`) beat file beat defaults. An unknown key, a wrong type or a value out of range is
refused with the place it came from and, for a typo, the key that was meant.

A nested key's environment variable joins its parts with two underscores: `HVDCLOUD_NODES=4`,
`HVDCLOUD_RUN__CONTROLLER=mpi`. Values are read as YAML, as they would be in the file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hvdcloud.config.model import Config
from hvdcloud.config.yaml_edit import put
from hvdcloud.errors import UsageError

CONFIG_FILE = "hvdcloud.yaml"
ENV_PREFIX = "HVDCLOUD_"
ENV_NOT_CONFIG = {
    "HVDCLOUD_STATE_DIR": "the folder with one folder per cluster: keys, pinned host keys, the journal",
    "HVDCLOUD_CHECKPOINT_DIR": "set in every rank: where the run's checkpoints belong",
    "HVDCLOUD_RUN": "set in every rank: the run's id",
    "HVDCLOUD_ADDRESS_URL": "a page that answers with this machine's public IPv4 address and nothing else, for "
    "gce.ssh.source: auto",
    "HVDCLOUD_GOOGLE_REGISTRIES": "more registries, separated by commas, that take a Google access token: mirrors and "
    "proxies",
    "HVDCLOUD_BUILDER": "what builds images: classic or buildkit; default: BuildKit where the engine and the docker "
    "command have it",
}
"""Variables that are read elsewhere and are not configuration keys, and what each is for."""


def load_config(
    path: Path | None = None, *, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """Read the configuration of one experiment.

    Args:
        path: hvdcloud.yaml; default: `hvdcloud.yaml` in the working folder, which may then be absent.
        flags: dotted key → value, from the command line; None means not given.
        environ: environment variables; default: this process's.

    Raises UsageError: the file is missing or is not YAML, or a key or value is not allowed.
    """
    environ = os.environ if environ is None else environ
    file = path if path is not None else Path(CONFIG_FILE)
    tree: dict[str, Any] = {}
    lines: dict[tuple[str, ...], str] = {}
    if file.is_file():
        tree, lines = _read_yaml(file)
    elif path is not None:
        raise UsageError(f"{path} does not exist", hint="hvdcloud init writes a project with an hvdcloud.yaml")
    for variable in sorted(environ):
        if variable.startswith(ENV_PREFIX) and variable not in ENV_NOT_CONFIG:
            key = tuple(variable.removeprefix(ENV_PREFIX).lower().split("__"))
            put(tree, key, _parsed(environ[variable]))
            lines[key] = f"environment variable {variable}"
    for dotted, value in (flags or {}).items():
        if value is not None:
            key = tuple(dotted.split("."))
            put(tree, key, value)
            lines[key] = f"--{key[-1].replace('_', '-')}"
    if "name" not in tree and not file.is_file():
        raise UsageError(
            f"there is no {CONFIG_FILE} in {Path.cwd()} and no --name",
            hint="hvdcloud init writes a project; -c names a file elsewhere; --name NAME does without one",
        )
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise _usage_error(error, file=file, lines=lines) from None
    config._project_dir = file.resolve().parent
    return config


def _read_yaml(file: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The file's mapping, and the place of every key."""
    lines: dict[tuple[str, ...], str] = {}

    def walk(node: yaml.Node, key: tuple[str, ...]) -> None:
        lines[key] = f"{file}:{node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for name, value in node.value:
                child = (*key, str(name.value))
                if child in seen:
                    raise UsageError(
                        f"{file}:{name.start_mark.line + 1}: {'.'.join(child)} appears twice", hint="keep one of them"
                    )
                seen.add(child)
                walk(value, child)
                lines[child] = f"{file}:{name.start_mark.line + 1}"
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, (*key, str(index)))

    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return {}, {}
        walk(root, ())
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{file}:{line}: not YAML: {error.problem}", hint=f"fix {file}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint=f"fix {file}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{file}:1: a mapping of keys is expected", hint="hvdcloud init writes one to start from")
    return tree, lines


def _parsed(text: str) -> object:
    """A value as YAML reads it; the text itself where that is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _section_at(key: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that holds the keys below `key`."""
    model: type[BaseModel] | None = Config
    for part in key:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            return None
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model


def _usage_error(error: ValidationError, *, file: Path, lines: Mapping[tuple[str, ...], str]) -> UsageError:
    """Every problem on a line of its own, with its place; the first one's remedy as the hint."""
    messages: list[str] = []
    hints: list[str] = []
    # A misspelt key often causes the other problems, so it comes first.
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        location = problem["loc"]
        key = tuple(str(part) for part in location if part != "[key]")
        dotted = ".".join(key)
        place = next((lines[key[:end]] for end in range(len(key), -1, -1) if key[:end] in lines), str(file))
        if problem["type"] == "extra_forbidden":
            section = _section_at(location[:-1])
            known = sorted(section.model_fields) if section else []
            close = difflib.get_close_matches(str(location[-1]).lower(), known, n=1, cutoff=0.6)
            messages.append(f"{place}: unknown key {dotted}")
            hints.append(f"did you mean {'.'.join((*key[:-1], close[0]))}?" if close else f"known: {', '.join(known)}")
        elif problem["type"] == "missing":
            messages.append(f"{place}: {dotted} is missing")
            hints.append(f"add {dotted}, or give it as --{key[-1].replace('_', '-')}")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            got = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
            messages.append(f"{place}: {dotted}: {text}{got}" if dotted else f"{place}: {text}")
            hints.append(f"fix {dotted or 'it'}; `hvdcloud config schema` has every key")
    others = [f"{message}; {hint}" for message, hint in zip(messages[1:], hints[1:], strict=True)]
    return UsageError(messages[0], hint=hints[0], details="\n".join(others))
