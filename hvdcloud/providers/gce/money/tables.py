"""The tables that come with this folder, in YAML, which people edit and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

# Of PyYAML with libyaml, which its wheels have: both tables take 5 ms, not 35.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_table(name: str) -> Any:
    """What the file of that name says."""
    return yaml.load(Path(__file__).with_name(name).read_text(encoding="utf-8"), Loader=_Loader)
