"""What is checked of this machine for every provider: engine, image, files, ssh."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Check, Finding, Once, Severity, failed, fine, setup_hint, unknown, unwritable, warning
from hvdcloud.doctor.command import check_command
from hvdcloud.doctor.gpus import check_gpus, needs_of
from hvdcloud.errors import CredentialsError, HvdcloudError, ImageError, NodeError, UsageError
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.image.plan.steps import ImagePlan
    from hvdcloud.providers.base import Platform
    from hvdcloud.remote.code import CodeFile

_ENGINE_SECONDS = 10
_BUILD_GB = {"cpu": 5, "cuda": 20}
"""What building an image from nothing takes."""
_LARGE_CODE = 100_000_000
"""Bytes of code above which some of it may be a mistake."""
_SPARE_GB = 2
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")


def machine_checks(config: Config, platform: Platform, *, state_folder: Path) -> Iterator[Check]:
    """What `hvdcloud doctor` checks of this machine, its image and the project."""
    yield from gpu_checks(config, platform)
    yield Check(name="engine", run=_engine)
    yield from build_checks(config, platform)
    yield Check(name="image", run=lambda: _image(config, platform), see=("engine", "credentials", "registry"))
    yield from project_checks(config)
    yield Check(name="ssh", run=_ssh)
    yield Check(name="state", run=lambda: _state(state_folder))


def gpu_checks(config: Config, platform: Platform) -> Iterator[Check]:
    """Whether the image has code for the nodes' GPUs, where nodes have some or may have."""
    if platform.machines() is not None or config.image.device == "cuda" or platform.device_mismatch():
        yield Check(name="GPU and image", run=lambda: _fit(config, platform), see=("machine",))


def build_checks(config: Config, platform: Platform) -> Iterator[Check]:
    """What building and pushing the image needs."""
    if platform.needs_registry:
        repository = config.image.repository
        yield Check(
            name="registry",
            run=lambda: _registry(config.provider, repository),
            severity=Severity.WARNS if repository else Severity.BLOCKS,
            see=("credentials", "engine"),
        )
    yield Check(name="builder", run=lambda: _builder(config, platform), see=("engine",))
    yield Check(name="disk", run=lambda: _disk(config, platform), severity=Severity.WARNS, see=("engine",))


def project_checks(config: Config, command: Sequence[str] = (), *, begins: bool = True) -> Iterator[Check]:
    """What a run needs of the project and this environment.

    Args:
        command: what every rank runs; empty: `run.command`.
        begins: a run begins; else only what is wrong for every run blocks, or with a `run.command` that somebody wrote.
    """
    code = Once(lambda: _list(config.project_dir))
    sent = Once(lambda: frozenset(file.path for file in code()))
    severity = Severity.BLOCKS if begins else Severity.WARNS
    of_command = Severity.BLOCKS if "command" in config.run.model_fields_set else severity
    yield Check(name="code", run=lambda: _code(code()))
    run = partial(check_command, command, config.run.command, config.project_dir, sent)
    yield Check(name="files", run=run, severity=of_command, see=("code",))
    variables = {name: found for name, text in config.run.env.items() if (found := _VARIABLE.findall(text))}
    if variables:
        yield Check(name="environment", run=lambda: _unexpanded(variables), severity=severity)
    if config.run.secrets:
        yield Check(name="secrets", run=lambda: _secrets(config.run.secrets), severity=severity)
    if (variable := config.notify) is not None:
        yield Check(name="notify", run=lambda: _notify(variable), severity=severity)


def _fit(config: Config, platform: Platform) -> Finding:
    """Whether the image has code for the nodes' GPUs, and whether both are of use."""
    check_gpus(config)
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
            hint=f"{setup_hint()}; e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
            error=UsageError,
        )
    try:
        registry.digest_at_registry(registry.target_of("none:latest", repository))
    except NodeError as error:
        return unknown(f"not checked: {error.message}", hint=error.hint, error=NodeError)
    except CredentialsError as error:
        return failed(f"{repository}: {error.message}", hint=error.hint, error=CredentialsError)
    except ImageError as error:
        return failed(
            f"{repository}: {error.message}",
            hint="check this machine's network and image.repository; hvdcloud setup makes a repository",
            error=ImageError,
        )
    return fine(f"{repository} answers")


def _engine() -> Finding:
    with _connected() as client:
        version, info = client.version(), client.info()
    return fine(
        f"Docker {version.get('Version', '?')} (API {version.get('ApiVersion', '?')}), "
        f"{counted(int(info.get('NCPU', 0)), 'core')}, {float(info.get('MemTotal', 0)) / 1e9:.1f} GB memory"
    )


def _builder(config: Config, platform: Platform) -> Finding:
    """Whether there is what builds images; one that exists needs none."""
    from hvdcloud.image.build import buildkit

    with _connected() as client:
        try:
            return fine(f"BuildKit, by {buildkit.find(client.api).command[0]}")
        except ImageError as error:
            if not _find_image(config, platform)[1]:
                raise
            return warning(error.message, hint=error.hint)


def _find_image(config: Config, platform: Platform) -> tuple[str, bool]:
    """The image that the nodes are to run, and whether the engine has it."""
    from hvdcloud.image.engine_stream import inspected
    from hvdcloud.image.plan import custom_base
    from hvdcloud.image.plan.steps import plan_image

    with _connected() as client:
        api: Any = client.api
        base, named = None, config.image.base
        if named is not None:
            base = custom_base.find(api, named) or custom_base.Base(reference=named, identity="")

        def planned(own_image: str = "") -> ImagePlan:
            folder, needs, machine = config.project_dir, needs_of(config), platform.processor
            return plan_image(
                config.image, project_dir=folder, machine=machine, base=base, needs=needs, own_image=own_image
            )

        plan = planned()
        own = plan.own_dockerfile and inspected(api, plan.own_dockerfile.reference)
        plan = planned(str(own["Id"])) if own else plan
        return plan.reference, inspected(api, plan.reference) is not None


def _image(config: Config, platform: Platform) -> Finding:
    """Whether nodes can run it now, or what that needs."""
    from hvdcloud.image.publish import registry

    (reference, built), repository = _find_image(config, platform), config.image.repository
    if not platform.needs_registry:
        if built:
            return fine(f"{reference} exists")
        return warning(f"{reference} is not built yet", hint="hvdcloud build; up and launch do it by themselves")
    if repository is None:
        return unknown("not checked: image.repository is not set")
    target = registry.target_of(reference, repository)
    digest = registry.published(reference, repository) or registry.digest_at_registry(target)
    if digest is not None:
        return fine(f"{target} is at the registry: {digest[:19]}")
    if built:
        message = f"{reference} is built, but not at the registry yet"
        return warning(message, hint="hvdcloud push; up and launch do it by themselves")
    hint = "hvdcloud build --push (or --remote); up and launch do it by themselves"
    return warning(f"{reference} is not built yet", hint=hint)


def _disk(config: Config, platform: Platform) -> Finding:
    """Whether the engine has room for the build."""
    with _connected() as client:
        root = Path(str(client.info().get("DockerRootDir", "")))
    try:
        free = shutil.disk_usage(root).free / 1e9
    except OSError:
        return unknown(f"the engine keeps its images in {root}, which cannot be seen from here")
    needed = _SPARE_GB
    # What is wrong with the image, its own check tells.
    with contextlib.suppress(HvdcloudError):
        needed += 0 if _find_image(config, platform)[1] else _BUILD_GB[config.image.device]
    if free < needed:
        return warning(
            f"{free:.1f} GB free in {root}; the image may need {needed} GB",
            hint="docker system df shows what takes the room; docker system prune frees some",
        )
    return fine(f"{free:.0f} GB free in {root}")


# --- files ----------------------------------------------------------------------------------------------------------


def _list(folder: Path) -> Sequence[CodeFile]:
    """The project's files; their contents are not read."""
    from hvdcloud.remote.code import list_code

    return list_code(folder, contents=False)


def _code(files: Sequence[CodeFile]) -> Finding:
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


def _unexpanded(variables: Mapping[str, Sequence[str]]) -> Finding:
    """What is said of values of `run.env` that name variables: of their own (`PATH: x:$PATH`), they cannot be meant."""
    own = next((name for name in variables if name in variables[name]), "")
    name = own or next(iter(variables))
    variable = own or variables[name][0]
    message = f"run.env.{name}: ${variable} in it is not expanded; a value is text"
    hint = f"in run.command it is expanded: {name}=…${variable}… python train.py"
    return failed(message, hint=hint, error=UsageError) if own else warning(message, hint=hint)


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
    from hvdcloud.runs.notice import address_problem

    value = os.environ.get(variable)
    problem = "is not set in this environment" if value is None else address_problem(value)
    if problem:
        hint = f"export {variable}=https://…, or take notify out of hvdcloud.yaml"
        return failed(f"notify: {variable} {problem}", hint=hint, error=UsageError)
    return fine(f"{variable} holds an address")


def _ssh() -> Finding:
    """The client of `hvdcloud ssh` and of provider ssh; a run on other providers does without."""
    found = shutil.which("ssh")
    if found is None:
        return warning(
            "no ssh on this machine's PATH", hint="install OpenSSH's client: `hvdcloud ssh` and provider ssh need it"
        )
    return fine(found)


def _state(folder: Path) -> Finding:
    """Whether keys and pinned host keys can be kept."""
    why = unwritable(folder)
    if not why:
        return fine(str(folder))
    return failed(
        f"{folder} cannot be made or written: {why}",
        hint="make it writable, or name another folder with HVDCLOUD_STATE_DIR",
        error=UsageError,
    )


# --- the engine -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    from hvdcloud import engine

    with contextlib.closing(engine.connect(timeout=_ENGINE_SECONDS)) as client:
        try:
            yield client
        except NodeError:
            raise
        except (DockerException, RequestException) as error:
            raise NodeError(
                f"the Docker engine does not answer as it should: {error}", hint=engine.START_HINT
            ) from error
