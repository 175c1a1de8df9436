"""`make reference`: docs/reference.md, from the commands' help, the configuration's schema and the exit codes.

    python -m tools.reference FILE

Only what is nowhere in the program (labels, files, the variables of other programs) is written here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer
from typer.cli import get_docs_for_click

from hvdcloud import errors
from hvdcloud.cli.main import command_line
from hvdcloud.cluster import model
from hvdcloud.config.file import ENV_NOT_CONFIG
from hvdcloud.config.model import Config
from hvdcloud.config.types import duration_text
from hvdcloud.errors import ExitCode, HvdcloudError

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
    "PIP_NO_INDEX, PIP_FIND_LINKS": "no index; folders with wheels, unless `image.find_links` names one",
    "SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE": "CA certificates for the image's build; the first that exists",
    "http_proxy, https_proxy, ftp_proxy, all_proxy, no_proxy": "proxies for the image's build, in capitals too",
    "STORAGE_EMULATOR_HOST": "another Cloud Storage endpoint than Google's",
    "GITHUB_SERVER_URL, GITHUB_REPOSITORY": "in GitHub Actions, for the image's labels",
}
FILES = {
    "hvdcloud.yaml": "the configuration, in the working folder or where `--config` says; its folder is the project",
    ".gitignore, .dockerignore": "what stays here when the project's folder is sent to the nodes",
    "checkpoints/RUN/": "where `pull` and `launch` put a run's checkpoints; another folder: `pull --to`",
    "~/.local/state/hvdcloud/NAME/": "what this machine remembers of a cluster; never needed to delete it",
    "…/NAME/id_ed25519": "the private key that opens the nodes; gone with the cluster",
    "…/NAME/known_hosts": "the nodes' host keys, pinned when the cluster came up",
    "…/NAME/ssh_config": "for `ssh -F`: one Host block per node",
    "…/NAME/journal.jsonl": "what was about to be made or deleted, written before it was",
    "…/NAME/verified.json": "which checkpoints were verified on this machine's disk",
    "…/NAME/bucket/": "the bucket of providers `local` and `ssh`, unless `checkpoints.bucket` names one",
    "/workspace": "on a node: the project's files; where ranks start",
    "/var/lib/hvdcloud/runs/RUN/": "on a node: a run's log, state, events and samples",
    "/var/lib/hvdcloud/data/NAME/": "on a node: `$HVDCLOUD_DATA/NAME`, a data set of `data`",
    "/var/lib/hvdcloud/checkpoints/RUN/": "on a node: `$HVDCLOUD_CHECKPOINT_DIR`",
}


PAGE = """\
<!-- Made by `make reference` from the program itself; changes belong there. -->

# The reference

The options of `hvdcloud` itself may stand anywhere before the user's command. `hvdcloud --install-completion` makes the
shell complete commands, options, templates and clusters.

{commands}## Exit codes

{exit_codes}
## hvdcloud.yaml

YAML, here with defaults. An unknown key, a wrong type or a value out of range is refused with its location. Durations
are written `90s`, `30m`, `12h`, `1h30m`, or as a number of seconds.

{configuration}

## Environment

Every key of hvdcloud.yaml is read from a variable too: `HVDCLOUD_` and the key in capitals, with two underscores for
each dot, as in `HVDCLOUD_NODES=4` or `HVDCLOUD_RUN__CONTROLLER=mpi`. Its value is the text; lists, sections, quotes and
null are read as YAML. These are not keys:

{variables}
And these, which belong to others:

{other_variables}
## Labels

On every object that belongs to a cluster and can have labels:

{labels}
## Files

The bucket's are in [data formats](formats.md#the-bucket).

{files}"""


def reference() -> str:
    """The whole page, in Markdown."""
    return PAGE.format(
        commands=commands(),
        exit_codes=listed({str(int(code)): meaning(code) for code in ExitCode}),
        configuration="\n".join(text for _, _, text in configuration()),
        variables=listed(ENV_NOT_CONFIG),
        other_variables=listed(OTHER_VARIABLES),
        labels=listed(LABELS),
        files=listed(FILES),
    )


def listed(items: Mapping[str, str]) -> str:
    """A list of names and what they are."""
    return "".join(f"- `{name.replace(', ', '`, `')}`: {what}\n" for name, what in items.items())


def all_commands() -> list[typer.Context]:
    """Every command that does something, those of groups too, in the order of `--help`."""

    def below(name: str, command: Any, parent: typer.Context | None) -> Iterator[typer.Context]:
        context = typer.Context(command, info_name=name, parent=parent)
        inner = getattr(command, "commands", {})
        for each in inner:
            yield from below(each, inner[each], context)
        if not inner and not command.hidden:
            yield context

    return list(below("hvdcloud", command_line(), None))


def commands() -> str:
    """What Typer says of all commands, with the usage as heading, and without the options that each of them has."""
    context = typer.Context(command_line(), info_name="hvdcloud")
    text = get_docs_for_click(obj=context.command, ctx=context, name="hvdcloud", indent=1)
    text = re.sub(r"(?m)^\* `--(help|install-completion|show-completion)\b.*\n", "", text)
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)
    text = re.sub(r"\*\*(Arguments|Options)\*\*:\n\n", "", text)
    usage = r"(?ms)^(#+) `[^`]*`$(.*?)\*\*Usage\*\*:\n\n```console\n\$ (.*?)\n```\n\n"
    text = re.sub(usage, r"\1 `\3`\2", text)
    text = re.sub(r"\x08\nExample:\n((?:  .*\n)+)", lambda found: f"```console\n{dedent(found[1])}```\n", text)
    return re.sub(r"\n{3,}", "\n\n", text)


def meaning(code: ExitCode) -> str:
    """What the error of this code says of itself; KeyError: there is none."""
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, HvdcloudError) and error.code == code != ExitCode.BUG:
            return " ".join((error.__doc__ or "").split("\n\n")[0].split())
    return {ExitCode.OK: "Done, also when there was nothing to do.", ExitCode.BUG: "A bug in hvdcloud."}[code]


def configuration() -> Iterator[tuple[str, str, str]]:
    """Every key, dotted, with its meaning, and the lines about it."""
    schema = Config.model_json_schema()
    return _section(schema, schema["$defs"], above="")


def _section(section: Any, sections: Any, *, above: str) -> Iterator[tuple[str, str, str]]:
    """The keys of a section, and then the sections in it."""
    inner = []
    for name, key in section["properties"].items():
        types = key.get("anyOf", [key])
        for found in re.findall(r'"#/\$defs/(\w+)"', json.dumps(key)):
            inner.append((f"{above}{name}" + (".NAME" if key.get("type") == "object" else ""), sections[found]))
        if "$ref" not in key:
            shown = _shown(f"{above}{name}", key, types)
            yield f"{above}{name}", key.get("description", ""), f"- {shown}: {key.get('description')}"
    for name, schema in inner:
        what = " ".join(schema.get("description", "").split("\n\n")[0].split())
        yield name, what, f"\n### `{name}`\n\n{what}\n"
        yield from _section(schema, sections, above=f"{name}.")


def _shown(name: str, key: Any, types: list[Any]) -> str:
    """A key with its default, and the values that it may have."""
    value = key.get("default")
    if isinstance(value, float) and any("pattern" in each for each in types):
        value = duration_text(value)
    default = f": {value if value and isinstance(value, str) else json.dumps(value)}" if "default" in key else ""
    bounds = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    may_be = [f"{said} {each[bound]:g}" for each in types for bound, said in bounds.items() if bound in each]
    may_be += [f"`{value}`" for each in types for value in each.get("enum", [each["const"]] if "const" in each else [])]
    return f"`{name}{default}`" + (f" ({', '.join(may_be)})" if may_be else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
