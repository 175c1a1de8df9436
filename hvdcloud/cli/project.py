"""The commands about a project as a whole: init, doctor, config; and how their results are shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hvdcloud.cli.app import Bucket, Invocation, Nodes, Provider

config_app = typer.Typer(help="The configuration file.", no_args_is_help=True, rich_markup_mode=None)

_SIGNS = {"ok": "✓", "warning": "!", "failed": "✗", "unknown": "?"}
"""By the status of a check."""


def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")] = Path(),
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help="The template: torch, torch-elastic, keras, ddp or bench.",
            show_default="torch",
        ),
    ] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write hvdcloud.yaml for this training script of yours.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="GPUs per node: 1, 2, 4 or 8 NVIDIA L4.")] = 0,
) -> None:
    """Write a project that runs as it is, or hvdcloud.yaml for a script.

    A project is hvdcloud.yaml, train.py and requirements.txt. With `--script`, it writes hvdcloud.yaml for a training
    script of yours and nothing else: the script's imports tell the framework and the launcher. Files that exist are
    never changed.

    \b
    Example:
      $ hvdcloud init digits --template keras
      $ hvdcloud init --script my_train.py --gpus 2
    """
    from hvdcloud.lifecycle import init as lifecycle

    invocation: Invocation = context.obj
    console = invocation.console
    if script is None:
        result = lifecycle.init(folder, template=template, name=invocation.name, gpus=gpus)
    else:
        result = lifecycle.init_script(folder, script, template=template, name=invocation.name, gpus=gpus)
    invocation.result = result
    for name in result.files:
        console.answer(f"wrote {result.folder / name}")
    for name in result.kept:
        console.answer(f"kept {result.folder / name} as it is")
    for note in result.notes:
        console.answer(f"note: {note}")
    go = [f"cd {shlex.quote(str(result.folder))}"] if result.folder != Path() else []
    prepare = ["hvdcloud setup"] if result.gpus else []
    console.answer(f"next: {' && '.join([*go, *prepare, 'hvdcloud launch'])}")


def doctor(
    context: typer.Context,
    nodes: Nodes = None,
    provider: Provider = None,
    bucket: Bucket = None,
) -> None:
    """Check everything that a run needs, before money is spent.

    Nothing is changed.

    ✓ passed, ! is a warning, ✗ has to be fixed (the next line says how), ? could not be checked.
    It exits with 0 if a run is possible, else with the code of the first ✗: 2 configuration, 3 credentials,
    permissions or an API, 4 quota, 5 engine or network, 6 image.

    \b
    Example:
      $ hvdcloud doctor
      $ hvdcloud doctor --provider gce --nodes 16
      $ hvdcloud doctor --json | jq .result.checks
    """
    from hvdcloud.lifecycle.doctor import doctor as run_checks

    invocation: Invocation = context.obj
    with invocation.context({"nodes": nodes, "provider": provider, "checkpoints.bucket": bucket}) as experiment:
        invocation.result = result = run_checks(experiment)
    invocation.exit_code = result.exit_code
    # A line per check; below each that did not pass, its details and how to fix it.
    rows: list[list[str]] = []
    for check in result.checks:
        rows.append([_SIGNS[check.status.value], check.name, check.message])
        more = [*check.details.splitlines(), *([f"→ {check.hint}"] if check.hint else [])]
        rows += [["", "", line] for line in more]
    invocation.console.table(["", "", ""], rows)
    counts = {status: sum(check.status.value == status for check in result.checks) for status in _SIGNS}
    words = {"ok": "passed", "warning": "warnings" if counts["warning"] > 1 else "warning"}
    said = ", ".join(f"{count} {words.get(status, status)}" for status, count in counts.items() if count)
    invocation.console.answer(f"{len(result.checks)} checks in {result.seconds:.1f} s: {said}")


@config_app.command()
def show(context: typer.Context) -> None:
    """Print every value that counts, and where it was written.

    That is a file and line, an environment variable, a flag, or a default.

    \b
    Example:
      $ hvdcloud config show
      $ hvdcloud config show --json | jq .result.settings
    """
    invocation: Invocation = context.obj
    loaded = invocation.load()
    settings = loaded.settings()
    invocation.result = {
        "file": loaded.file,
        "settings": [
            {"key": each.key, "value": each.value, "source": each.place.source, "place": each.place.text}
            for each in settings
        ],
    }
    rows = [[each.key, each.place.text, each.text] for each in settings]
    invocation.console.table(["KEY", "FROM", "VALUE"], rows)


@config_app.command()
def validate(context: typer.Context) -> None:
    """Check hvdcloud.yaml and the environment, and list every mistake.

    The environment's variables are those whose names begin with HVDCLOUD_. The exit code is 2 where there is a mistake.

    \b
    Example:
      $ hvdcloud config validate && hvdcloud doctor
    """
    invocation: Invocation = context.obj
    loaded = invocation.load()
    config = loaded.config
    invocation.result = {"file": loaded.file, "valid": True}
    what = loaded.file or "the configuration without a file"
    invocation.console.answer(f"{what} is valid: cluster {config.name}, provider {config.provider}")


@config_app.command()
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of hvdcloud.yaml.

    \b
    Example:
      $ hvdcloud config schema > hvdcloud.schema.json
    """
    from hvdcloud.config.model import config_schema

    invocation: Invocation = context.obj
    invocation.console.raw_json(config_schema())
    invocation.console.as_json = False
