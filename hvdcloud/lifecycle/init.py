"""`hvdcloud init`: a project that runs as it is, or hvdcloud.yaml for a training script that exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from hvdcloud.config.file import CONFIG_FILE
from hvdcloud.config.gce import L4_MACHINES
from hvdcloud.config.set_keys import set_keys
from hvdcloud.errors import UsageError
from hvdcloud.project_files import GITIGNORE
from hvdcloud.training_script import read_script, training_scripts

TEMPLATES = ("torch", "torch-elastic", "keras", "ddp", "bench")
_REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """What was written.

    Attributes:
        files: that were written, in `folder`.
        kept: that existed, and were not touched.
        notes: what was found in an existing script, and what it lacks.
        gpus: of each node.
    """

    folder: Path
    name: str
    files: Sequence[str]
    kept: Sequence[str] = ()
    notes: Sequence[str] = ()
    gpus: int


def init(folder: Path, *, template: str | None, name: str | None, gpus: int = 0) -> InitResult:
    """Write a template's files; nothing that exists is touched.

    Args:
        template: None: `torch`, unless the folder has a training script.
        name: of the cluster; None: made from the folder's name.
        gpus: of each node; 0: nodes without GPUs.

    Raises:
        UsageError: no such template, or a file exists already.
    """
    contents = _template(template or "torch")
    kept = [entry for entry in contents if (folder / entry).exists()]
    if kept not in ([], [GITIGNORE]) or template is None:
        _refuse_beside(folder, kept)
    name = name or _name_from(folder)
    contents[CONFIG_FILE] = _configuration(contents[CONFIG_FILE], {"name": name}, gpus=gpus)
    contents = {entry: text for entry, text in contents.items() if entry not in kept}
    _write(folder, contents)
    return InitResult(folder=folder, name=name, files=sorted(contents), kept=kept, gpus=gpus)


def init_script(
    folder: Path, script: Path, *, template: str | None = None, name: str | None = None, gpus: int = 0
) -> InitResult:
    """Write hvdcloud.yaml for a training script, and nothing else. The script is parsed, not executed.

    Args:
        folder: the project's, with the script in it.
        script: as seen from here, or from `folder`.
        template: whose hvdcloud.yaml to take; None: by what the script imports. The launcher is always that.
        name: of the cluster; None: made from the folder's name.
        gpus: of each node; 0: nodes without GPUs.

    Raises:
        UsageError: there is no such script in the folder, it imports no framework, or hvdcloud.yaml exists.
    """
    if not script.is_file() and (folder / script).is_file():
        script = folder / script
    found = read_script(script, project=folder)
    if not script.resolve().is_relative_to(folder.resolve()):
        message = f"{script} is not in the project's folder {folder.resolve()}"
        raise UsageError(message, hint=_command(script.parent, script))
    launcher, decided = next(iter(found.launchers.items()), (None, ""))
    if template is None and found.framework is None and launcher is None:
        hint = f"{_command(folder, script)} --template torch, ddp, or keras"
        raise UsageError(f"{script} imports none of torch, tensorflow, keras and jax", hint=hint)
    inside = script.resolve().relative_to(folder.resolve())
    command = f"python {shlex.quote(inside.as_posix())}"
    if found.relative and len(inside.parts) > 1:
        command = f"python -m {shlex.quote('.'.join(inside.with_suffix('').parts))}"
    if (folder / CONFIG_FILE).exists():
        raise UsageError(f"{folder / CONFIG_FILE} already exists", hint=f"hvdcloud launch {command}")
    name = name or _name_from(folder)
    because = f"--template {template}" if template else "it or TensorFlow is in every image"
    if template is None:
        own = "torch" if launcher in ("horovod", None) else "ddp"
        template = "keras" if found.framework == "tensorflow" else own
    text = _template(template)[CONFIG_FILE]
    has_requirements = (folder / _REQUIREMENTS).is_file()
    if not has_requirements:
        text = re.sub(r"(?m)^  requirements: .*\n", "", text)
    # The templates train for seconds.
    values = {"name": name, "run.command": command, "checkpoints.keep_every": "60s", "limits.max_run_duration": "12h"}
    if launcher is not None:
        values["run.launcher"] = launcher
    _write(folder, {CONFIG_FILE: _configuration(text, values, gpus=gpus)})
    framework = "tensorflow" if template == "keras" else "torch"
    notes = [f"image.framework is {framework}: {found.because if found.framework == framework else because}"]
    if found.other_framework:
        notes.append(f"{script.name} imports {found.other_framework} too; the image has one framework")
    if launcher is not None:
        notes.append(f"run.launcher is {launcher}: {decided}")
    else:
        example = "keras" if framework == "tensorflow" else "ddp"
        notes.append(
            f"{script.name} has nothing that joins its ranks: each would train alone. `hvdcloud init DIR "
            f"--template {example}` shows what it needs; if it starts its own processes, set run.launcher: each"
        )
    if launcher == "torchrun" and found.spawns:
        notes.append(f"{found.spawns}, which torchrun does itself: take it out and read LOCAL_RANK")
    if found.packages and not has_requirements:
        notes.append(f"{script.name} imports {', '.join(found.packages)}: list their packages in {_REQUIREMENTS}")
    return InitResult(folder=folder, name=name, files=[CONFIG_FILE], notes=notes, gpus=gpus)


def _template(name: str) -> dict[str, str]:
    if name not in TEMPLATES:
        raise UsageError(f"there is no template {name!r}", hint=f"one of: {', '.join(TEMPLATES)}")
    entries = (files("hvdcloud") / "templates" / name).iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}


def _refuse_beside(folder: Path, taken: Sequence[str]) -> None:
    """Raises UsageError: the folder has files of the template, or a training script, for which --script is meant."""
    scripts = training_scripts(folder)
    if "train.py" in taken and folder / "train.py" not in scripts:
        scripts = [folder / "train.py", *scripts]
    if scripts and CONFIG_FILE not in taken:
        message = f"{scripts[0]} exists, and a template would train something else"
        raise UsageError(message, hint=_command(folder, scripts[0]))
    if in_the_way := sorted({*taken} - {GITIGNORE}):
        raise UsageError(f"{folder / in_the_way[0]} already exists", hint="name an empty folder: hvdcloud init DIR")


def _command(folder: Path, script: Path) -> str:
    where = [] if folder == Path() else [str(folder)]
    return shlex.join(["hvdcloud", "init", *where, "--script", str(script)])


def _configuration(text: str, values: dict[str, str], *, gpus: int) -> str:
    """A template's hvdcloud.yaml with other values, and with GPUs."""
    if gpus:
        if gpus not in L4_MACHINES:
            *some, last = map(str, L4_MACHINES)
            raise UsageError(f"no machine has {gpus} NVIDIA L4", hint=f"--gpus {', '.join(some)} or {last}")
        machine = f"  machine_type: {L4_MACHINES[gpus]}\n  gpu: {{type: nvidia-l4, count: {gpus}}}"
        text = re.sub(r"(?m)^  gpu: null.*$", machine, text)
        values = {**values, "provider": "gce", "image.device": "cuda"}
    return set_keys(text, values)[0]


def _write(folder: Path, contents: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry, text in contents.items():
            with (folder / entry).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder") from error


def _name_from(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    return name if re.match(r"[a-z]", name) else "digits"
