"""The scripts of a VM: at every boot host, driver and image side by side, container; and at its end. Pure.

The guest attribute `hvdcloud/status` says how it fares, as a JSON object: `{"status": S}`, where S is host, login,
pulling (with `percent`), not allowed to pull yet (both with `"beside": "driver"` while the driver is being installed),
driver or starting, or `{"status": "failed", "step": …, "error": …}`. From starting on the container's entrypoint writes
it too. The serial port has more, in lines that begin with `hvdcloud: `.
"""

from __future__ import annotations

import shlex
from pathlib import Path

_FOLDER = Path(__file__).parent
_SHEBANG = "#!/bin/bash\n"


def render(
    *,
    image: str,
    registry_login: bool,
    gpu: bool,
    driver: str = "default",
    settled_at: float = 0.0,
) -> str:
    """The script's text.

    Args:
        image: what the container runs: `HOST/REPOSITORY@sha256:…`.
        registry_login: log in to the image's registry by the VM's own service account.
        gpu: the VM has GPUs.
        driver: for `cos-extensions install gpu -- -version=`: `default`, `R580` or an exact version.
        settled_at: until then, in seconds since 1970, a registry or a bucket that refuses is asked again.
    """
    values = {
        "IMAGE": image,
        "REGISTRY": image.partition("/")[0] if registry_login else "",
        "SETTLED_AT": str(int(settled_at)),
        "GPU": "yes" if gpu else "no",
        "DRIVER": driver,
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return _SHEBANG + "\n".join([assignments, _part("common"), _part("cos"), _part("start")])


def render_shutdown() -> str:
    """The text of the script that asks the container for its checkpoints when the VM ends."""
    return (_FOLDER / "shutdown.sh").read_text(encoding="utf-8")


def _part(name: str) -> str:
    return (_FOLDER / f"{name}.sh").read_text(encoding="utf-8").removeprefix(_SHEBANG)
