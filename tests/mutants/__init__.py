"""Single damaging mutations of the package, each of which a test has to notice.

A mutant is a named patch in one of the YAML files of this folder: `name` (the damage in plain words), `file`, `old`
(text that occurs exactly once in that file), `new`, and `tests`, of which at least one must fail. Mutants that change
nothing a test could observe are not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One patch.

    Args:
        file: relative to the repository, as are the files in `tests`.
        tests: files or node ids of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def patched(self, root: Path) -> str | None:
        """The file below `root` with the patch; None where `old` does not occur exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def load() -> list[Mutant]:
    """All mutants, in the order of the files."""
    found: list[Mutant] = []
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        # Every process that collects tests loads them: by libyaml in a tenth of the time.
        for raw in yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or ():
            found.append(Mutant(**{**raw, "tests": tuple(raw["tests"])}))
    return found
