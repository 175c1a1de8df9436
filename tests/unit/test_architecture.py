"""VMs are amd64: what an engine of another processor is asked for, what it says, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ImageError
from hvdcloud.image.build import buildkit
from hvdcloud.image.build.builder import Options, carry_out
from hvdcloud.image.engine_stream import BuildEvent, Progress, ignore
from hvdcloud.image.plan import custom_base
from hvdcloud.image.plan.context import Context, Entry
from hvdcloud.image.plan.steps import ImagePlan, Step, plan_image

NOTICE = (
    "the nodes are amd64 and this machine is not: emulation takes 5 to 10 times as long; "
    "hvdcloud build --remote builds at Google"
)


class Engine:
    """docker-py's client of an engine.

    Args:
        arch: its own processor.
        makes: the architecture of what it builds; "": the one that it is asked for.
        images: name → architecture.
    """

    def __init__(self, arch: str = "arm64", *, makes: str = "", images: Mapping[str, str] | None = None) -> None:
        self.arch, self.makes = arch, makes
        self.images = dict(images or {})
        self.asked: list[str] = []
        self.pulled: list[str | None] = []

    def version(self) -> dict[str, Any]:
        return {"Arch": self.arch, "Version": "28.0"}

    def packs_zstd(self, _api: Any) -> bool:
        return False

    def inspect_image(self, name: str) -> dict[str, Any]:
        from docker.errors import ImageNotFound

        if name not in self.images:
            raise ImageNotFound(name)
        return {"Id": f"sha256:{name}-{self.images[name]}", "Architecture": self.images[name], "Config": {}}

    def build(self, step: Step, *, architecture: str, zstd: bool, progress: Progress) -> None:
        self.asked.append(architecture)
        progress(BuildEvent(kind="step", text="[1/1] FROM scratch", step=1))
        self.images[step.reference] = self.makes or architecture or self.arch

    def tag(self, name: str, repository: str, tag: str) -> None:
        self.images[f"{repository}:{tag}"] = self.images[name]

    def pull(self, repository: str, *, tag: str, platform: str | None = None, **_: Any) -> list[dict[str, Any]]:
        self.pulled.append(platform)
        self.images[f"{repository}:{tag}"] = self.makes or (platform or "").removeprefix("linux/")
        return []


@pytest.fixture(autouse=True)
def builds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildkit, "find", lambda engine: engine)


def plan(*, architecture: str = "amd64") -> ImagePlan:
    context = Context(hashed=(Entry(path="Dockerfile", content=b"FROM scratch\n"),))
    step = Step(
        reference="hvdcloud/user:1", what="image.dockerfile Dockerfile", context=context, dockerfile="Dockerfile"
    )
    return ImagePlan(reference="hvdcloud/project:1", steps=(step,), architecture=architecture)


def test_an_image_for_vms_is_planned_for_amd64_and_another_one_for_this_machine(tmp_path: Path) -> None:
    config = ImageConfig(requirements=None)
    vms = plan_image(config, project_dir=tmp_path, machine="x86_64")
    assert vms.architecture == "amd64"
    assert plan_image(config, project_dir=tmp_path).architecture == ""
    assert plan_image(config, project_dir=tmp_path, machine="aarch64").reference != vms.reference


def test_an_engine_of_another_processor_is_asked_for_the_nodes_and_says_at_once_what_that_takes() -> None:
    engine, events = Engine(), list[BuildEvent]()
    carry_out(engine, plan(), Options(progress=events.append))
    assert engine.asked == ["amd64"]
    assert engine.images["hvdcloud/project:1"] == "amd64"
    assert [event.text for event in events if event.kind == "warning"] == [NOTICE]
    kinds = [event.kind for event in events]
    assert kinds.index("warning") < kinds.index("step")


@pytest.mark.parametrize(("arch", "architecture"), [("amd64", "amd64"), ("arm64", "")], ids=["laptop", "local"])
def test_where_nothing_is_emulated_nothing_is_said(arch: str, architecture: str) -> None:
    engine, events = Engine(arch), list[BuildEvent]()
    carry_out(engine, plan(architecture=architecture), Options(progress=events.append))
    assert engine.asked == [architecture]
    assert not [event for event in events if event.kind == "warning"]


def test_a_dockerfile_that_makes_an_image_for_another_processor_is_refused() -> None:
    with pytest.raises(ImageError) as refused:
        carry_out(Engine("amd64", makes="arm64"), plan())
    assert refused.value.message == "image.dockerfile Dockerfile makes an image for arm64, and the nodes are amd64"
    assert refused.value.hint == "take --platform out of Dockerfile"


def test_what_the_engine_has_for_another_processor_is_built_again() -> None:
    engine = Engine(images={"hvdcloud/user:1": "arm64", "hvdcloud/project:1": "arm64"})
    assert not carry_out(engine, plan()).cached
    assert engine.images["hvdcloud/project:1"] == "amd64"
    assert carry_out(engine, plan()).cached


def test_a_base_image_for_another_processor_is_pulled_for_the_nodes() -> None:
    engine = Engine(images={"theirs:1": "arm64"})
    base = custom_base.have(engine, "theirs:1", progress=ignore, architecture="amd64")
    assert engine.pulled == ["linux/amd64"]
    assert base.identity == "sha256:theirs:1-amd64"
    custom_base.have(engine, "theirs:1", progress=ignore, architecture="amd64")
    assert len(engine.pulled) == 1


def test_a_base_image_that_exists_for_another_processor_only_is_refused() -> None:
    engine = Engine(makes="arm64")
    with pytest.raises(ImageError) as refused:
        custom_base.have(engine, "theirs:1", progress=ignore, architecture="amd64")
    assert refused.value.message == "image.base: theirs:1 is for arm64, and the nodes are amd64"
    assert refused.value.hint == "name an image for linux/amd64 in image.base"
