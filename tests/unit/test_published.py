"""Published images: which are asked for, by what name, and what is pulled is what would be built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.image.build import published
from hvdcloud.image.plan.context import dockerfiles
from tools import published as tool

OURS, OTHERS = (f"sha256:{digit * 64}" for digit in "12")
BASE = "hvdcloud/base:torch-2.13.0-cpu-0123456789ab"


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image is published."""
    monkeypatch.delenv(published.PUBLISHED_VARIABLE, raising=False)
    monkeypatch.setattr(published, "dockerfiles", lambda: tmp_path)
    (tmp_path / published.FILE).write_text(f"# What this is.\n\n{BASE} {OURS}\n")


def test_the_file_that_is_shipped_names_recipes_of_this_version_by_digest() -> None:
    text = (dockerfiles() / published.FILE).read_text()
    for line in text.splitlines():
        assert re.fullmatch(r"(#.*|hvdcloud/base:[\w.-]+-[0-9a-f]{12} sha256:[0-9a-f]{64})?", line)
    # What no recipe of this version makes is of no use: `make publish-images` has left it out.
    assert published.parse(text).keys() <= {tool.plan_of(row).reference for row in tool.rows()}


def test_only_what_the_file_names_is_asked_for_and_by_its_digest() -> None:
    assert published.find(BASE) == f"ghcr.io/hvdcloud/images@{OURS}"
    assert published.find(BASE[:-1]) == ""


def test_a_mirror_is_asked_in_its_place_and_0_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(published.PUBLISHED_VARIABLE, "mirror.lab:5000/hvdcloud")
    assert published.find(BASE) == f"mirror.lab:5000/hvdcloud@{OURS}"
    monkeypatch.setenv(published.PUBLISHED_VARIABLE, "0")
    assert published.find(BASE) == ""
    monkeypatch.setenv(published.PUBLISHED_VARIABLE, "mirror.lab")
    with pytest.raises(UsageError, match=r"HVDCLOUD_PUBLISHED 'mirror\.lab' is not a repository"):
        published.find(BASE)


def test_every_row_is_published_with_horovod_and_without() -> None:
    names = list(tool.rows())
    assert {"torch-2.13.0-cpu", "torch-2.13.0-cpu-plain", "torch-2.14.1-cuda-plain"} <= set(names)
    assert "torch-2.14.1-cuda" not in names
    assert len({tool.plan_of(name).reference for name in names}) == len(names)


def test_a_row_is_left_out_once_its_image_is_published() -> None:
    reference = tool.plan_of("torch-2.13.0-cpu").reference
    assert reference.startswith("hvdcloud/base:torch-2.13.0-cpu-")
    assert "torch-2.13.0-cpu" in tool.missing({BASE: OURS})
    assert "torch-2.13.0-cpu" not in tool.missing({reference: OURS})


def test_a_new_line_replaces_an_old_one_and_what_no_recipe_makes_any_more_goes() -> None:
    base, plain = (tool.plan_of(name).reference for name in ("torch-2.13.0-cpu", "torch-2.13.0-cpu-plain"))
    before = f"# What this is.\n# More.\n{BASE} {OURS}\n{base} {OURS}\n"
    after = tool.renewed(before, {base: OTHERS, plain: OTHERS})
    assert after == "# What this is.\n# More.\n" + "".join(sorted(f"{each} {OTHERS}\n" for each in (base, plain)))
    assert tool.renewed(after, {}) == after
