"""`make reference`: docs/reference.md, made from the commands, the configuration's models and the exit codes.

    python -m tools.reference FILE

What the program itself says (help texts, defaults, descriptions) is taken from there. Only what is nowhere in
it (labels, files, the variables of other programs) is written here.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from typer.main import get_command

from hvdcloud import errors
from hvdcloud.cli.main import app
from hvdcloud.cluster import model
from hvdcloud.config import file, types
from hvdcloud.config import model as config
from hvdcloud.errors import ExitCode, HvdcloudError

WIDTH = 120

_EVERYWHERE = ("help", "install_completion", "show_completion")
"""Typer's own options: they would be listed with every command and say the same, in words that change with Typer."""

_EXIT_WITHOUT_ERROR = {ExitCode.OK: "Done, also when there was nothing to do.", ExitCode.BUG: "A bug in hvdcloud."}

LABELS = {
    model.LABEL_MANAGED_BY: f"always `{model.MANAGED_BY}`",
    model.LABEL_CLUSTER: "the cluster's name",
    model.LABEL_OWNER: "who made it: user and machine",
    model.LABEL_ID: "six hexadecimal digits, new for every `up`: distinguishes clusters of the same name",
    model.LABEL_NODES: "how many nodes the cluster was made with",
    model.LABEL_NODE: "on what belongs to one node: its index; 0 is the head",
    model.LABEL_CREATED: "when `up` made it, in seconds since 1970",
}

OTHER_VARIABLES = {
    "GOOGLE_APPLICATION_CREDENTIALS": "a key file, instead of what `gcloud auth application-default login` wrote",
    "DOCKER_HOST, DOCKER_CONTEXT": "which Docker engine; default: the docker command's current context",
    "XDG_STATE_HOME": "where the state folder `hvdcloud` is; default: `~/.local/state`",
    "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL": "package indexes for the image's build",
    "PIP_NO_INDEX": "1: the image's build asks no package index, only local wheels",
    "PIP_FIND_LINKS": "folders with wheels for the image's build, unless `image.find_links` names one",
    "SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE": "CA certificates for the image's build, unless `image.ca_bundle` "
    "names some; the first that exists",
    "http_proxy, https_proxy, ftp_proxy, all_proxy, no_proxy": "proxies for the image's build, in capitals too",
    "STORAGE_EMULATOR_HOST": "another Cloud Storage endpoint than Google's",
    "GITHUB_SHA, GITHUB_REPOSITORY, CI_COMMIT_SHA, CI_PROJECT_URL": "what GitHub's and GitLab's CI say of the source, "
    "for the image's labels; elsewhere Git is asked",
}

FILES = {
    "hvdcloud.yaml": "the configuration, in the working folder or where `--config` says; its folder is the project",
    "requirements.txt": "what pip adds to the image; another one: `image.requirements`",
    ".gitignore, .dockerignore": "what stays here when the project's folder is sent to the nodes",
    "checkpoints/RUN/": "where `pull` and `launch` put a run's checkpoints; another folder: `--to`",
    "~/.local/state/hvdcloud/NAME/": "what this machine remembers of a cluster; never needed to delete it",
    "~/.local/state/hvdcloud/NAME/id_ed25519": "the private key that opens the nodes; gone with the cluster",
    "~/.local/state/hvdcloud/NAME/known_hosts": "the nodes' host keys, pinned when the cluster came up",
    "~/.local/state/hvdcloud/NAME/ssh_config": "for `ssh -F`: one Host block per node",
    "~/.local/state/hvdcloud/NAME/journal.jsonl": "what was about to be made or deleted, written before it was",
    "~/.local/state/hvdcloud/NAME/verified.json": "which checkpoints were verified on this machine's disk",
    "~/.local/state/hvdcloud/NAME/bucket/": "the bucket of provider `local`, unless `checkpoints.bucket` names one",
    "CLUSTER/RUN/": "in the bucket: a run's checkpoints, those of node 1 and on in `@node-K/`",
    "CLUSTER/RUN/.hvdcloud/": "in the bucket: manifests, and for `logs` and `report` log, state, events and samples",
    "/workspace": "on a node: the project's files; where ranks start",
    "/var/lib/hvdcloud/runs/RUN/": "on a node: a run's log, state, events and samples",
    "/var/lib/hvdcloud/data/NAME/": "on a node: `$HVDCLOUD_DATA/NAME`, a data set of `data`",
    "/var/lib/hvdcloud/checkpoints/RUN/": "on a node: `$HVDCLOUD_CHECKPOINT_DIR`",
}


def reference() -> str:
    """The whole page, in Markdown."""
    everything = all_commands()
    root: Any = everything[0].find_root()
    lines = [
        "<!-- Made by `make reference` from the program itself; changes belong there. -->",
        "",
        "# hvdcloud: the reference",
        "",
        "## Name",
        "",
        *_text(f"hvdcloud: {root.command.help}"),
        "",
        "## Synopsis",
        "",
        "```",
        "hvdcloud [GLOBAL OPTIONS] COMMAND [OPTIONS] [ARGUMENTS]",
        *(synopsis(context) for context in everything),
        "```",
        "",
        "## Global options",
        "",
        *_text(
            "They may stand anywhere before the user's command. `--help` after a command describes that command; "
            "`hvdcloud --install-completion` makes the shell complete commands, options, templates, clusters, runs and "
            "nodes."
        ),
        "",
        *_parameters(root),
        "",
        "## Commands",
        "",
    ]
    for context in everything:
        lines += [*_command(context), ""]
    lines += [
        "## Exit codes",
        "",
        *_text("With `--json` the document has the code too, and the error's `details`."),
        "",
    ]
    lines += [*(_item(str(int(code)), meaning(code)) for code in ExitCode), ""]
    lines += ["## hvdcloud.yaml", "", *_configuration(), ""]
    lines += ["## Environment", "", *_environment(), ""]
    lines += ["## Labels", "", *_text("On every object that belongs to a cluster and can have labels:"), ""]
    lines += [*(_item(f"`{name}`", what) for name, what in LABELS.items()), ""]
    lines += ["## Files", "", *(_item(_names(name), what) for name, what in FILES.items())]
    return "\n".join(lines) + "\n"


# --- commands -------------------------------------------------------------------------------------------------------


def all_commands() -> list[typer.Context]:
    """Every command that does something, those of groups too, in the order of `--help`."""
    return list(_commands(typer.Context(get_command(app), info_name="hvdcloud")))


def _commands(parent: typer.Context) -> Iterator[typer.Context]:
    group: Any = parent.command
    for name in group.list_commands(parent):
        command = group.commands[name]
        context = typer.Context(command, info_name=name, parent=parent)
        if hasattr(command, "commands"):
            yield from _commands(context)
        elif not command.hidden:
            yield context


def synopsis(context: typer.Context) -> str:
    """One line: `hvdcloud run [OPTIONS] [COMMAND…]`."""
    words = [context.command_path]
    words += ["[OPTIONS]"] * any(_shown(parameter) for parameter in _of_kind(context, "option"))
    for argument in _of_kind(context, "argument"):
        name = _value(argument) + ("…" if argument.nargs == -1 else "")
        words.append(name if argument.required else f"[{name}]")
    return " ".join(words)


def description_and_example(context: typer.Context) -> tuple[list[str], str]:
    r"""A docstring's paragraphs, and the block at its end (after `\b`, which keeps its lines as they are)."""
    paragraphs = (context.command.help or "").partition("\f")[0].strip().split("\n\n")
    example = ""
    if paragraphs[-1].lstrip("\n").startswith("\b"):
        example = paragraphs.pop().lstrip("\n").removeprefix("\b").strip("\n")
        example = textwrap.dedent(re.sub(r"\A\s*examples?:[ \t]*\n", "", example, flags=re.IGNORECASE)).strip()
        if re.fullmatch(r"examples?:", paragraphs[-1].strip() if paragraphs else "", flags=re.IGNORECASE):
            paragraphs.pop()
    return [paragraph for paragraph in paragraphs if paragraph.strip()], example


def _command(context: typer.Context) -> Iterator[str]:
    paragraphs, example = description_and_example(context)
    yield f"### {context.command_path}"
    yield from ("", "```", synopsis(context), "```")
    for paragraph in paragraphs:
        yield ""
        if paragraph.lstrip("\n").startswith("\b"):
            yield from ("```", *paragraph.lstrip("\n").removeprefix("\b").strip("\n").splitlines(), "```")
        else:
            yield from _text(paragraph)
    parameters = list(_parameters(context))
    if parameters:
        yield from ("", *parameters)
    if example:
        yield from ("", "Example:", "", "```console", *_prompts(example), "```")


def _prompts(example: str) -> Iterator[str]:
    """The commands of an example behind a prompt, its other lines (output, comments) as they are."""
    for line in example.splitlines():
        yield f"$ {line}" if line.startswith("hvdcloud ") else line


def _parameters(context: typer.Context) -> Iterator[str]:
    for parameter in (*_of_kind(context, "argument"), *_of_kind(context, "option")):
        if not _shown(parameter):
            continue
        notes = [note for note in (_default(parameter), _variables(parameter)) if note]
        text = (parameter.help or "").rstrip(".")
        yield _item(f"`{_spelling(parameter)}`", text + (f" ({'; '.join(notes)})" if notes else ""))


def _of_kind(context: typer.Context, kind: str) -> list[Any]:
    return [each for each in context.command.get_params(context) if each.param_type_name == kind]


def _shown(parameter: Any) -> bool:
    return not getattr(parameter, "hidden", False) and parameter.name not in _EVERYWHERE


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _value(parameter)
    spelled = ", ".join(sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--")))
    return spelled if parameter.is_flag else f"{spelled} {_value(parameter)}"


def _value(parameter: Any) -> str:
    metavar = str(parameter.metavar or parameter.name.replace("_", "-").upper())
    return metavar[1:-1] if re.fullmatch(r"\[[^\[\]]*\]", metavar) else metavar


def _default(parameter: Any) -> str:
    shown = parameter.show_default
    if isinstance(shown, str):
        return f"default: `{shown}`"
    value = parameter.default
    if not shown or value is None or value is False or callable(value) or parameter.required:
        return ""
    return f"default: `{value}`"


def _variables(parameter: Any) -> str:
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
    return f"environment: {_names(', '.join(names))}" if names else ""


# --- exit codes, configuration, environment -------------------------------------------------------------------------


def meaning(code: ExitCode) -> str:
    """What the error of this code says of itself.

    Raises:
        LookupError: no error has this code.
    """
    if code in _EXIT_WITHOUT_ERROR:
        return _EXIT_WITHOUT_ERROR[code]
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, HvdcloudError) and error.code == code:
            return _first_paragraph(error)
    raise LookupError(f"no error has exit code {code!r}")


def _configuration() -> Iterator[str]:
    yield from _text(
        "YAML. An unknown key, a wrong type or a value out of range is refused with its location. Flags "
        "beat the environment, which beats the file, which beats the defaults. `hvdcloud config schema` prints all of "
        "it as JSON Schema. Durations are written `90s`, `30m`, `12h`, `1h30m`, or as a number of seconds."
    )
    yield ""
    yield from (line for line, _ in _section(config.Config, ()))


def config_keys() -> list[tuple[str, str]]:
    """Every key, dotted, with its description; of a section without one, what its model says."""
    return [named for _, named in _section(config.Config, ()) if named[0]]


def _section(model: type[BaseModel], above: Sequence[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The lines of one section, keys first, then the sections in it; each with the key that it is about."""
    nothing = ("", "")
    properties = model.model_json_schema()["properties"]
    sections = []
    for name, field in model.model_fields.items():
        key = ".".join((*above, name))
        inner = _model_in(field)
        if inner is not None:
            sections.append((f"{name}.NAME" if get_origin(field.annotation) is dict else name, inner))
        if inner is None or type(None) in get_args(field.annotation):
            kind = "section or null" if inner else _type(properties[name])
            described = field.description or ""
            note = f" ({kind}; {_default_of(field, properties[name])})"
            yield _item(f"`{key}`", described, note=note), (key, described)
    for name, inner in sections:
        key = ".".join((*above, name))
        described = _first_paragraph(inner)
        yield from (("", nothing), (f"### `{key}`", (key, described)), ("", nothing))
        yield from ((line, nothing) for line in (*_text(described), ""))
        yield from _section(inner, (*above, name))


def _model_in(field: FieldInfo) -> type[BaseModel] | None:
    candidates = (field.annotation, *get_args(field.annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)


_DURATION = TypeAdapter(types.Duration).json_schema()["anyOf"]


def _is_duration(schema: Mapping[str, Any]) -> bool:
    alternatives = schema.get("anyOf", [])
    return all(each in alternatives for each in _DURATION)


def _type(schema: Mapping[str, Any]) -> str:
    if _is_duration(schema):
        rest = [each for each in schema["anyOf"] if each not in _DURATION]
        return " or ".join(["duration", *map(_type, rest)])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        *others, last = (f"`{value}`" for value in values)
        return f"{', '.join(others)} or {last}" if others else last
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"names with {_type(values)}" if isinstance(values, dict) else "mapping"
    name = {"string": "text", "boolean": "true or false", "null": "null"}.get(str(kind), str(kind))
    bounds = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    limits = [f"{words} {schema[bound]:g}" for bound, words in bounds.items() if bound in schema]
    return f"{name} {', '.join(limits)}" if limits else name


def _default_of(field: FieldInfo, schema: Mapping[str, Any]) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "default: the section with its defaults"
    if isinstance(value, float):
        text = types.duration_text(value) if _is_duration(schema) else f"{value:g}"
    else:
        text = value if isinstance(value, str) and value else json.dumps(value)
    return f"default: `{text}`"


def _environment() -> Iterator[str]:
    yield from _text(
        f"Every key of hvdcloud.yaml is read from a variable too: `{file.ENV_PREFIX}` and the key in capitals, "
        f"with two underscores for each dot, as in `{file.ENV_PREFIX}NODES=4` or "
        f"`{file.ENV_PREFIX}RUN__CONTROLLER=mpi`. Its value is the text; lists, sections, quotes and null are read as "
        "YAML. These are not keys:"
    )
    yield ""
    for name, what in file.ENV_NOT_CONFIG.items():
        yield _item(f"`{name}`", what)
    yield from ("", "And these, which belong to others:", "")
    for name, what in OTHER_VARIABLES.items():
        yield _item(_names(name), what)


def _first_paragraph(documented: type) -> str:
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())


# --- Markdown -------------------------------------------------------------------------------------------------------


def _names(text: str) -> str:
    return ", ".join(f"`{name}`" for name in text.split(", "))


def _item(name: str, text: str, *, note: str = "") -> str:
    return "\n".join(wrapped(f"- **{name}**{note}: {escaped(text)}", indent="  "))


def _text(text: str) -> list[str]:
    return wrapped(escaped(" ".join(text.split())))


def escaped(text: str) -> str:
    """Escape what Markdown would take for markup, outside of `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<\\])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def wrapped(text: str, *, indent: str = "") -> list[str]:
    # A line that begins with one of these would be a list, a heading or a quotation.
    glued = re.sub(r"(?<=\S) (?=([-+*#>]|\d+[.)]) )", "\0", text)
    lines = textwrap.wrap(glued, width=WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the reference of hvdcloud's commands and configuration.")
    parser.add_argument("file", type=Path, help="where to")
    arguments = parser.parse_args()
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.write_text(reference(), encoding="utf-8")
