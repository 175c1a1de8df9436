"""hvdcloud.yaml → models (model.py).

Flags beat environment (`HVDCLOUD_…`) beat file beat defaults. An unknown key, a wrong type or a value out of range is
refused with the place it came from and, for a typo, the key that was meant.

A nested key's environment variable joins its parts with two underscores: `HVDCLOUD_NODES=4`,
`HVDCLOUD_RUN__CONTROLLER=mpi`. Lists, sections, quotes and null are read as YAML, as they would be in the file; other
values are the text of the variable.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from hvdcloud.config.data import refused_bucket, refused_data
from hvdcloud.config.model import Config
from hvdcloud.config.trust import ENV_PREFIX, HOSTS, refused
from hvdcloud.config.types import duration_text, is_duration
from hvdcloud.errors import UsageError

CONFIG_FILE = "hvdcloud.yaml"
ENV_NOT_CONFIG = {
    "HVDCLOUD_STATE_DIR": "the folder with one folder per cluster: keys, pinned host keys, the journal",
    "HVDCLOUD_CHECKPOINT_DIR": "set in every rank: where the run's checkpoints belong",
    "HVDCLOUD_RUN": "set in every rank: the run's id",
    "HVDCLOUD_DATA": "set in every rank: the folder with one folder for each data set of `data`",
    "HVDCLOUD_WAITS": "set in every rank: the file into which it writes how long it has waited for others",
    "HVDCLOUD_ADDRESS_URL": "a page that answers with this machine's public IPv4 address and nothing else, for "
    "gce.ssh.source: auto",
    "HVDCLOUD_GOOGLE_ENDPOINT": "another server than Google's for Compute Engine and the APIs that doctor and offers "
    "ask; it gets this machine's Google credentials",
    "HVDCLOUD_GOOGLE_REGISTRIES": "more registries, separated by commas, that take a Google access token: mirrors and "
    "proxies",
    "HVDCLOUD_PUBLISHED": "a mirror, `HOST/PATH`, to pull hvdcloud's published images from; `0`: they are built",
}
"""Variables that are read elsewhere and are not configuration keys, and what each is for."""
_MOST_BYTES = 100_000
_MOST_VALUES = 20_000
"""More than any real file has; aliases of aliases can make any number."""

Key = tuple[str, ...]
ENV = ("run", "env")


class _Loader(yaml.SafeLoader):
    """In which a value without quotes is text, or null: a key's type decides what `0123`, `3.10` or `yes` mean."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the parent's.
        first: [rule for rule in rules if rule[0].endswith((":null", ":merge"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    close = yaml.SafeLoader.dispose


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value was written.

    Attributes:
        source: what kind of place it is.
        text: `hvdcloud.yaml:3`, `HVDCLOUD_NODES`, `--nodes`.
    """

    source: Literal["file", "environment", "flag", "default"]
    text: str

    def __str__(self) -> str:
        return f"environment variable {self.text}" if self.source == "environment" else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of one key that is in effect; `text` is the value as hvdcloud.yaml would have it."""

    key: str
    value: Any
    text: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration, and where each of its keys was written.

    Attributes:
        file: hvdcloud.yaml; None: there is none, and nothing but flags, the environment and defaults counts.
        places: of the keys that were written anywhere, sections included.
    """

    config: Config
    file: Path | None
    places: Mapping[Key, Place]

    def settings(self) -> Sequence[Setting]:
        """Every key with its value, in the order of the models."""

        def walk(section: BaseModel, above: Key) -> Iterator[Setting]:
            for name, field in type(section).model_fields.items():
                value, key = getattr(section, name), (*above, name)
                if isinstance(value, BaseModel):
                    yield from walk(value, key)
                    continue
                place = self.places.get(key, Place(source="default", text="default"))
                yield Setting(key=".".join(key), value=_plain(value), text=_text(field, value), place=place)

        return tuple(walk(self.config, ()))


def load(
    path: Path | None = None, *, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Loaded:
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
    places: dict[Key, Place] = {}
    twice: list[str] = []
    if file.is_file():
        tree, places, twice = _read_yaml(file)
    elif path is not None:
        raise UsageError(f"{path} does not exist", hint="hvdcloud init writes a project with an hvdcloud.yaml")
    for variable in sorted(environ):
        if variable.startswith(ENV_PREFIX) and variable not in ENV_NOT_CONFIG:
            key = tuple(variable.removeprefix(ENV_PREFIX).lower().split("__"))
            if key[:2] == ENV and key[2:]:
                key = (*ENV, variable.split("__", maxsplit=2)[2])
            place = Place(source="environment", text=variable)
            _put(tree, places, key, _parsed(environ[variable], key), place)
    for dotted, given in (flags or {}).items():
        if given is not None:
            key = tuple(dotted.split("."))
            _put(tree, places, key, given, Place(source="flag", text=f"--{key[-1].replace('_', '-')}"))
    if "name" not in tree and not file.is_file():
        raise UsageError(
            f"there is no {CONFIG_FILE} in {Path.cwd()} and no --name",
            hint="hvdcloud init writes a project; -c names a file elsewhere; --name NAME does without one",
        )
    problems: list[_Problem] = [(said, "keep one of them") for said in twice]
    try:
        config = Config.model_validate(tree)
        problems += _untrusted(config, file=file, places=places)
    except ValidationError as error:
        problems += _problems(error, file=file, places=places)
    if problems:
        raise _usage_error(problems, file=file)
    config._project_dir = file.resolve().parent
    hosts = places.get(HOSTS)
    # YAML's merge keys bring in values that are written elsewhere, and have no place.
    config._hosts_are_the_files = bool(config.ssh.hosts) and (hosts is None or hosts.source == "file")
    image = config.image
    if "requirements" not in image.model_fields_set and not (config.project_dir / str(image.requirements)).is_file():
        config = config.model_copy(update={"image": image.model_copy(update={"requirements": None})})
    return Loaded(config=config, file=file if file.is_file() else None, places=places)


def _put(tree: dict[str, Any], places: dict[Key, Place], key: Key, value: object, place: Place) -> None:
    """Set a nested key, and its place; sections that are missing, or no mappings, become new ones."""
    _place(places, key, value, place)
    for part in key[:-1]:
        child = tree.get(part)
        # A copy: what an alias shares with another key must not change there.
        tree[part] = dict(child) if isinstance(child, dict) else {}
        tree = tree[part]
    tree[key[-1]] = value


def _place(places: dict[Key, Place], key: Key, value: object, place: Place) -> None:
    """Note where a value was written; what was written below its key before does not count any more."""
    for below in [each for each in places if each[: len(key)] == key]:
        del places[below]
    places[key] = place
    for name, inner in value.items() if isinstance(value, dict) else ():
        _place(places, (*key, str(name)), inner, place)


def _read_yaml(file: Path) -> tuple[dict[str, Any], dict[Key, Place], list[str]]:
    """The file's mapping, the place of every key, and a message for each key that appears twice."""
    places: dict[Key, Place] = {}
    twice = []

    def at(mark: yaml.Mark) -> Place:
        return Place(source="file", text=f"{file}:{mark.line + 1}")

    def walk(node: yaml.Node, key: Key) -> None:
        places[key] = at(node.start_mark)
        if len(places) > _MOST_VALUES:
            raise yaml.YAMLError(f"it has more than {_MOST_VALUES:,} values, or aliases that expand to more")
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for name, value in node.value:
                child = (*key, str(name.value))
                if child in seen:
                    twice.append(f"{at(name.start_mark)}: {'.'.join(child)} appears twice")
                seen.add(child)
                walk(value, child)
                places[child] = at(name.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, (*key, str(index)))

    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file} has more than {_MOST_BYTES // 1000} kB", hint=f"fix {file}")
        text = file.read_text(encoding="utf-8")
        with contextlib.closing(_Loader(text)) as loader:
            root = loader.get_single_node()
            if root is None:
                return {}, {}, []
            walk(root, ())
            tree = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem).replace("'<stream end>'", "the end of the file")
        raise UsageError(f"{file}:{line}: not YAML: {problem}", hint=f"fix {file}") from None
    except RecursionError:
        raise UsageError(f"{file} cannot be read: it is nested too deep", hint=f"fix {file}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint=f"fix {file}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{file}:1: a mapping of keys is expected", hint="hvdcloud init writes one to start from")
    return tree, places, twice


def _parsed(text: str, key: Key) -> object:
    """The value of a key's environment variable: as in the file; where a text has no quotes, all of it."""
    field = _field_at(key)
    has_parts = field is None or get_origin(field.annotation) in (dict, list) or _model_of(field) is not None
    with contextlib.suppress(yaml.YAMLError), contextlib.closing(_Loader(text)) as loader:
        value = loader.get_single_data()
        quoted = text.strip()[:1] in ("'", '"')
        known = quoted if isinstance(value, str) else has_parts or value is None
        if known and key[:-1] != ENV:
            return value
    return text


# --- what is wrong ---------------------------------------------------------------------------------------------------

_LONGEST_VALUE = 60
_PRIVATE = ("env", "secrets")
"""Keys of `run` whose values no message shows, as that of `notify`: it may end up in a log."""


_Problem: TypeAlias = tuple[str, str]
"""One thing that is wrong, and what fixes it; "": the message says it."""


def _field_at(key: Sequence[str]) -> FieldInfo | None:
    above = _field_at(key[:-1]) if len(key) > 1 else None
    if above is not None and get_origin(above.annotation) is dict:
        inner = get_args(above.annotation)[1]
        return FieldInfo(annotation=inner) if _is_model(inner) else None
    section = _model_of(above) if len(key) > 1 else Config
    return section.model_fields.get(key[-1]) if section and key else None


def _model_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """The section that a key stands for."""
    if field is None or get_origin(field.annotation) is dict:
        return None
    candidates = [field.annotation, *get_args(field.annotation)]
    return next((each for each in candidates if _is_model(each)), None)


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _problems(error: ValidationError, *, file: Path, places: Mapping[Key, Place]) -> Iterator[_Problem]:
    order = {key: number for number, key in enumerate(places)}
    found = []
    for problem in error.errors():
        key = tuple(str(part) for part in problem["loc"] if part != "[key]")
        written = next((key[:end] for end in range(len(key), -1, -1) if key[:end] in places), None)
        # A misspelt key often causes the other problems, so it comes first.
        rank = (problem["type"] != "extra_forbidden", order[written] if written is not None else -1)
        found.append((rank, key, places[written] if written is not None else file, problem))
    for _, key, place, problem in sorted(found, key=lambda each: each[0]):
        dotted = ".".join(key)
        if problem["type"] == "extra_forbidden":
            section = _model_of(_field_at(key[:-1])) if len(key) > 1 else Config
            known = sorted(section.model_fields) if section else []
            close = difflib.get_close_matches(key[-1].lower(), known, n=1, cutoff=0.6)
            fix = f"did you mean {'.'.join((*key[:-1], close[0]))}?" if close else f"known: {', '.join(known)}"
            yield f"{place}: unknown key {dotted}", fix
        elif problem["type"] == "missing":
            fix = f"add {dotted}, or give it as --{key[-1].replace('_', '-')}"
            yield f"{place}: {dotted} is missing", fix
        elif problem["type"] == "value_error":
            said = problem["msg"].removeprefix("Value error, ")
            yield f"{place}: {dotted}: {said}" if dotted else f"{place}: {said}", ""
        else:
            said = f"{problem['msg'].replace('Input', 'it', 1)}{_got(problem['input'], key)}"
            flag = isinstance(place, Place) and place.source == "flag"
            yield (f"{place}: {said}", "--help shows what it takes") if flag else (f"{place}: {dotted}: {said}", "")


def _got(value: object, key: Key) -> str:
    """What was written instead; nothing where that may be a secret."""
    if key[:1] == ("notify",) or (key[:1] == ("run",) and (len(key) == 1 or key[1] in _PRIVATE)):
        return ""
    got = value if isinstance(value, str) and value.isprintable() and value else _as_yaml(value)
    return f" (got {got if len(got) <= _LONGEST_VALUE else f'{got[:_LONGEST_VALUE]}…'})"


def _untrusted(config: Config, *, file: Path, places: Mapping[Key, Place]) -> Iterator[_Problem]:
    """What only the user may decide, and the file does; data and a bucket that the nodes cannot have."""
    bucket, provider = config.checkpoints.bucket, config.provider
    unfit = (*refused_bucket(bucket, provider=provider), *refused_data(config.data, provider=provider, bucket=bucket))
    written = {key: place.source for key, place in places.items()}
    for key, why, fix in (*refused(config, written, project=file.resolve().parent), *unfit):
        yield f"{places.get(key, file)}: {'.'.join(key)}: {why}", fix


def text_of(config: Config, key: str) -> str:
    """A key's value as hvdcloud.yaml would have it."""
    field = _field_at(key.split("."))
    assert field is not None, f"{key} is a key"
    return _text(field, attrgetter(key)(config))


def _text(field: FieldInfo, value: object) -> str:
    return duration_text(value) if isinstance(value, float) and is_duration(field) else _as_yaml(value)


def _as_yaml(value: object) -> str:
    """On one line, as in the file."""
    text = yaml.safe_dump(_plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: object) -> Any:
    """As JSON knows it."""
    return TypeAdapter(Any).dump_python(value, mode="json", exclude_none=True)


def _usage_error(problems: Sequence[_Problem], *, file: Path) -> UsageError:
    """Every problem on a line of its own, with its place, and one hint."""
    again = "hvdcloud config validate" + ("" if file == Path(CONFIG_FILE) else f" -c {shlex.quote(str(file))}")
    hint = f"fix it, then {again}" if len(problems) == 1 else f"fix these {len(problems)} lines, then {again}"
    if len(problems) == 1:
        message, fix = problems[0]
        return UsageError(message, hint=fix or hint)
    first, *others = ("; ".join(filter(None, each)) for each in problems)
    return UsageError(first, hint=hint, details="\n".join(others))
