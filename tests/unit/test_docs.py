"""README and docs/: every link leads to something, every page is one click away, every command exists."""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import check_command_line
from tools.reference import all_commands

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [README, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")), *PAGES]
COMMANDS = {command.command_path for command in all_commands()}


def without_code(text: str) -> str:
    """The text without blocks and spans of code, which may look like links and headings."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))


def links(text: str) -> list[str]:
    """Where links and pictures lead, but for other sites."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [link for link in found if "://" not in link]


def anchors(text: str) -> set[str]:
    """What `#…` may name on a page: its headings, as GitHub and MkDocs write them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.name))
def test_every_link_and_anchor_leads_to_something(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One `two`, three\n\n```\n# no heading\n[no](link)\n```\n")
    page = tmp_path / "b.md"
    page.write_text(
        "[1](a.md) [2](a.md#one-two-three) [3](a.md#no-heading) [4](c.md) [5](#b) `[6](c.md)` [7](https://x)\n"
    )
    assert dead(page) == ["a.md#no-heading", "c.md", "#b"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_a_page_links_only_what_the_site_has(page: Path) -> None:
    assert [link for link in links(page.read_text(encoding="utf-8")) if "/" in link] == []


def test_every_page_is_one_click_away() -> None:
    names = {page.name for page in PAGES} - {"index.md"}
    assert names <= {Path(link.partition("#")[0]).name for link in links(README.read_text(encoding="utf-8"))}
    assert names <= set(links((ROOT / "docs/index.md").read_text(encoding="utf-8")))
    nav = yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert {page.name for page in PAGES} == set(re.findall(r"[\w-]+\.md", nav))


def test_readme_is_short_and_begins_with_the_quick_start() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    assert len(" ".join(lines).split()) <= 1100
    first = "\n".join(lines[:30])
    for said in ("make demo", "make test", "docker info", "pipx install .", "uv tool install .", "checkpoints →"):
        assert said in first
    for said in ("hvdcloud init", "hvdcloud launch", "hvdcloud init --script"):
        assert said in first


@pytest.mark.parametrize(("pages", "most"), [(["CONTRIBUTING.md"], 1600), (["SECURITY.md"], 600), (PAGES, 19000)])
def test_documents_are_no_longer_than_a_reader_has_time(pages: list[str | Path], most: int) -> None:
    assert sum(len((ROOT / page).read_text(encoding="utf-8").split()) for page in pages) <= most


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: str(page.name))
def test_every_target_of_make_that_is_shown_exists(page: Path) -> None:
    known = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    shown = re.findall(r"(?m)(?:^ *\$ |^|`|&& )make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
    assert set(shown) <= known


def test_the_tour_has_every_room() -> None:
    tour = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A tour of the code")[2]
    rooms = {path.name for path in (ROOT / "hvdcloud").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(re.findall(r"\*\*(\w+)/\*\*", tour.partition("Beside the package")[0]))


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.name))
def test_every_command_that_is_shown_exists(page: Path) -> None:
    known = {path.split()[1] for path in COMMANDS}
    shown = re.findall(r"(?:^ *\$ |`|&& |; )hvdcloud ([a-z]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(shown) <= known


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.name))
def test_every_command_line_that_is_shown_is_one_that_the_program_takes(page: Path) -> None:
    for line in re.findall(r"(?m)^ *\$ (.*\bhvdcloud .*)$", page.read_text(encoding="utf-8")):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|>")
        lexer.whitespace_split = True
        for between, part in groupby(lexer, {"&&", "|", ">"}.__contains__):
            program, *words = part
            if between or program != "hvdcloud":
                continue
            check_command_line(words)
