"""What is checked of this machine for every provider: engine, image and files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.checks import SETUP_HINT, Check, Finding, Once, failed, fine, unknown, warning
from hvdcloud.doctor.command import check_command
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.node.run.sync import Entry
    from hvdcloud.providers.base import Platform

_ENGINE_SECONDS = 10
_LARGE_CODE = 100_000_000
"""Bytes of code above which some of it may be a mistake."""


def machine_checks(config: Config, platform: Platform) -> Iterator[Check]:
    """What `hvdcloud doctor` checks of this machine and the project."""
    yield from gpu_checks(config, platform)
    yield from build_checks(config, platform)
    yield from project_checks(config)


def gpu_checks(config: Config, platform: Platform) -> Iterator[Check]:
    """Whether the image has code for the nodes' GPUs, where nodes have some or may have."""
    if platform.machines() is not None or config.image.device == "cuda" or platform.device_mismatch():
        yield Check(name="GPU and image", run=lambda: _fit(config, platform), see=("machine",))


def check_gpus(config: Config, platform: Platform) -> None:
    """Makes sure that the image has code for the nodes' GPUs.

    Raises UsageError: it has none; the hint names the row of hvdcloud/image/plan/versions.py that has.
    """
    from hvdcloud.image.plan import versions

    image, gpu = config.image, platform.gpu()
    # What image.base has code for, only the image knows.
    if gpu is not None and image.base is None:
        horovod = config.run.launcher == "horovod"
        row = versions.find(image.framework, image.device, image.version, horovod=horovod)
        versions.check_fits(row, gpu=gpu.name, capability=gpu.compute_capability)


def build_checks(config: Config, platform: Platform) -> Iterator[Check]:
    """What building and pushing the image needs."""
    yield Check(name="engine", run=_engine)
    if platform.needs_registry:
        repository = config.image.repository
        yield Check(
            name="registry",
            run=lambda: _registry(config.provider, repository),
            blocks=repository is None,
            see=("credentials", "engine"),
        )


def project_checks(config: Config, command: Sequence[str] = (), *, begins: bool = True) -> Iterator[Check]:
    """What a run needs of the project and this environment.

    Args:
        command: what every rank runs; empty: `run.command`.
        begins: a run begins; else only what is wrong for every run blocks, or with a `run.command` that somebody wrote.
    """
    from hvdcloud.remote.code import list_code

    code = Once(partial(list_code, config.project_dir, contents=False))
    yield Check(name="code", run=lambda: _code(code()))
    launcher = config.run.launcher
    run = partial(check_command, command, config.run.command, config.project_dir, code, launcher=launcher)
    yield Check(name="files", run=run, blocks=begins or "command" in config.run.model_fields_set, see=("code",))
    if config.run.env:
        yield Check(name="environment", run=lambda: _environment(config.run.env), blocks=begins)
    if config.run.secrets:
        yield Check(name="secrets", run=lambda: _secrets(config.run.secrets), blocks=begins)
    if (variable := config.notify) is not None:
        yield Check(name="notify", run=lambda: _notify(variable), blocks=begins)


def _fit(config: Config, platform: Platform) -> Finding:
    """Whether the image has code for the nodes' GPUs, and whether both are of use."""
    check_gpus(config, platform)
    if mismatch := platform.device_mismatch():
        return mismatch
    gpu, image = platform.gpu(), config.image
    if gpu is None and image.device == "cuda":
        return unknown(f"the compute capability of the GPUs {platform.place} is not known")
    if gpu is None:
        return fine(f"no GPU, and image.device is {image.device}")
    if image.base is not None:
        return unknown(f"only image.base {image.base} knows whether it has code for {gpu.name}")
    return fine(f"the image has code for {gpu.name} (compute capability {gpu.compute_capability})")


def _registry(provider: str, repository: str | None) -> Finding:
    """Whether it answers and lets this machine in."""
    from hvdcloud.image.publish import registry

    if repository is None:
        return failed(
            f"image.repository is not set; provider {provider} pulls the image from there",
            hint=f"{SETUP_HINT}; e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
            error=UsageError,
        )
    registry.digest_at_registry(registry.target_of("none:latest", repository))
    return fine(f"{repository} answers")


def _engine() -> Finding:
    """Whether it answers, and builds images."""
    from hvdcloud import engine
    from hvdcloud.image.build import buildkit

    with contextlib.closing(engine.connect(timeout=_ENGINE_SECONDS)) as client:
        version, info, builder = client.version(), client.info(), buildkit.find(client.api)
    cores, memory = counted(int(info.get("NCPU", 0)), "core"), float(info.get("MemTotal", 0)) / 1e9
    said = f"Docker {version.get('Version', '?')} (API {version.get('ApiVersion', '?')})"
    return fine(f"{said}, {cores}, {memory:.1f} GB memory; BuildKit by {builder.command[0]}")


def _code(files: Sequence[Entry]) -> Finding:
    """What nodes are sent; raises UsageError: something of it cannot be."""
    total = sum(file.size for file in files)
    said = f"nodes get {counted(len(files), 'file')}, {size(total)}"
    if total > _LARGE_CODE:
        largest = max(files, key=lambda file: file.size)
        return warning(
            f"{said}; the largest is {largest.path} ({size(largest.size)})",
            hint="a line in .gitignore or .dockerignore leaves out what nodes do not need",
        )
    return fine(said)


def _environment(values: Mapping[str, str]) -> Finding:
    """Whether a value of `run.env` names a variable, which is not expanded; its own (`PATH: $PATH`) cannot be meant."""
    named = [(name, each) for name, text in values.items() for each in re.findall(r"\$\{?([A-Za-z_]\w*)", text)]
    for name, variable in sorted(named, key=lambda pair: pair[0] != pair[1])[:1]:
        message = f"run.env.{name}: ${variable} in it is not expanded; a value is text"
        hint = f"in run.command it is expanded: {name}=…${variable}… python train.py"
        return failed(message, hint=hint) if name == variable else warning(message, hint=hint)
    return fine(f"{', '.join(values)}")


def _secrets(names: Sequence[str]) -> Finding:
    """Whether they are set. Their values are not read."""
    absent = [name for name in names if name not in os.environ]
    if absent:
        return failed(
            f"run.secrets: {', '.join(absent)} not set in this environment",
            hint=f"export {absent[0]}=…, or take it out of run.secrets",
            error=UsageError,
        )
    return fine(f"{', '.join(names)} are set")


def _notify(variable: str) -> Finding:
    """Whether it holds an address, which is a secret. Nothing is sent."""
    from hvdcloud.runs.notice import address_in

    address_in(variable)
    return fine(f"{variable} holds an address")
