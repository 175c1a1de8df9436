"""Names that are never checkpoints: those of repositories, however a file system spells them, and hvdcloud's own."""

from __future__ import annotations

import pytest

from hvdcloud.checkpoints.names import MOST_SENTENCES, clashes, refusals, sentences

SPELLINGS = [
    ".git",
    ".GIT",
    ".Git",
    ".git.",
    ".git ",
    ".git. .",
    ".git::$INDEX_ALLOCATION",
    ".git:x",
    "git~1",
    "GIT~2",
    ".g\u200cit",
    ".gi\ufefft",
    "\u202e.git",
    ".\uff47\uff49\uff54",
    "x\\.git",
    ".git\\config",
    ".hg",
]


@pytest.mark.parametrize("part", SPELLINGS)
@pytest.mark.parametrize("pattern", ["{}", "{}/config", "a/{}/config", "@node-3/{}/hooks/pre-commit", "a/b/{}"])
def test_every_spelling_of_a_repositorys_folder_is_refused(part: str, pattern: str) -> None:
    name = pattern.format(part)
    assert list(refusals(["epoch-1.pt", name])) == [name]


HONEST = [
    "git",
    ".gitignore",
    ".gitattributes",
    ".github/x",
    "model.git",
    "git/config",
    "heads/HEAD",
    "objects/x",
    "refs/x",
    "a/objects/x",
    "a/refs/x",
    "b/HEAD",
    "commondir",
    "c/.gitkeep",
    "git~x",
    "ünïcödé/日本語.pt",
    "a/.hvdcloud/x",
]


def test_other_names_are_not() -> None:
    assert refusals(HONEST) == {}


@pytest.mark.parametrize("folder", ["", "a/", "@node-2/deep/er/"])
@pytest.mark.parametrize(
    "parts",
    [
        ("HEAD", "objects/pack/x", "refs/heads/main"),
        ("head", "OBJECTS/x", "Refs/x"),
        ("HEAD", "commondir"),
    ],
)
def test_a_folder_that_would_be_a_bare_repository_loses_what_makes_it_one(folder: str, parts: tuple[str, ...]) -> None:
    names = [folder + part for part in parts]
    refused = refusals([*names, f"{folder}config", f"{folder}epoch-1.pt"])
    assert sorted(refused) == sorted(names)
    assert refusals(names[1:]) == {}


def test_what_is_on_the_disk_already_can_complete_a_repository() -> None:
    disk = {"a/": ["HEAD", "config"], "": ["x"]}
    names = ["a/objects/x", "a/refs/x", "a/y"]
    assert refusals(names) == {}
    assert sorted(refusals(names, present=lambda folder: disk[folder])) == ["a/objects/x", "a/refs/x"]


@pytest.mark.parametrize("name", [".hvdcloud/log", ".hvdcloud-tmp/x", "@node-1/.hvdcloud/manifest-0.json", ".HVDCLOUD"])
def test_hvdclouds_own_names_are_no_checkpoints(name: str) -> None:
    assert list(refusals([name, "x"])) == [name]


def test_a_thousand_reasons_are_a_few_sentences() -> None:
    names = [f"{number}/{part}" for number in range(1000) for part in ("HEAD", "objects/x", "refs/x")]
    said = sentences(refusals([*names, ".git/a", ".git/b", "\udcff/.git/c"]), "not uploaded")
    assert len(said) == MOST_SENTENCES + 1
    assert said[-1].startswith("and ")
    assert "".join(said).encode()
    assert sentences({".git/a": "why", ".git/b": "why"}, "not uploaded") == [
        ".git/a and 1 more: not uploaded, since why"
    ]


def test_names_that_one_disk_can_not_hold_together_are_known() -> None:
    assert clashes(["a", "a/b", "ab", "c/d"], ignores_case=False) == {"a": "a/b needs a folder of this name"}
    assert clashes(["A", "a", "B/x", "b/y"], ignores_case=False) == {}
    assert list(clashes(["A", "a", "B/x", "b/y"], ignores_case=True)) == ["a"]
    assert list(clashes(["A/x", "a"], ignores_case=True)) == ["a"]
    assert list(clashes(["\u00e9", "e\u0301"], ignores_case=True)) == ["\u00e9"]
