"""The list of mutants fits the package as it is."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutants import REPOSITORY, Mutant, load

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_and_names_tests_that_exist(mutant: Mutant) -> None:
    patched = mutant.patched(REPOSITORY)
    assert patched is not None, f"{mutant.old!r} does not occur exactly once in {mutant.file}"
    assert mutant.old != mutant.new
    if mutant.file.endswith(".py"):
        compile(patched, mutant.file, "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE), test


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
