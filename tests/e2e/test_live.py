"""`make live` against the emulated Google, without what needs a GPU: the whole of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.standins.terraform import missing, resources, stand_in
from tests.support.cloud import PROJECT, SETUP_ACCOUNT, Cloud
from tests.support.terminal import terminal_with

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0
"""Its clusters live one after the other."""


@pytest.fixture(scope="module")
def cloud(cloud: Cloud) -> Cloud:
    """Nodes may do what `setup` allows them."""
    where = f"projects/{PROJECT}/zones/*/instances/live-*"
    cloud.emulator.access.allow(SETUP_ACCOUNT, "compute.instances.delete", resource=where)
    return cloud


@pytest.mark.nightly
def test_an_hour_on_google_leaves_fixtures_and_nothing_else(cloud: Cloud, tmp_path: Path) -> None:
    """On a terminal, in a project in which hvdcloud was never set up."""
    cloud.emulator.google.clear()
    environ = {
        **cloud.environ,
        **stand_in(tmp_path / "terraform", compute=cloud.emulator.url, storage=cloud.storage.url),
        "HVDCLOUD_GOOGLE_ENDPOINT": cloud.emulator.url,
        # Where the registry is; setup makes one at Google's.
        "HVDCLOUD_IMAGE__REPOSITORY": f"{cloud.registry}/hvdcloud/live",
        "PYTHONPATH": str(ROOT),
    }
    words = ["--project", PROJECT, "--results", str(tmp_path / "results"), "--without", "gpu"]
    began = len(cloud.emulator.log.entries())
    with terminal_with(
        [sys.executable, "-m", "tests.live", *words], cwd=ROOT, environ=environ, size=(140, 45)
    ) as screen:
        screen.wait_for(lambda text: "Type the project's name to begin" in text)
        screen.press(f"{PROJECT}\r")
        code, printed = screen.end(seconds=SECONDS)
    assert code == 0, printed.decode(errors="replace")[-6000:]
    assert cloud.left() == []
    assert not [kind for kind in resources(tmp_path / "terraform") if kind.endswith(("network", "repository"))]
    requests = [entry.body for entry in cloud.emulator.log.entries()[began:] if entry.method.endswith("bulkInsert")]
    limits = {int(body["instanceProperties"]["scheduling"]["maxRunDuration"]["seconds"]) for body in requests}
    assert max(limits) <= 60 * 60
    (folder,) = (tmp_path / "results").iterdir()
    assert (folder / "hard-end.log").read_text() == ""
    files = {path.name: path.read_text() for path in (folder / "fixtures").iterdir()}
    bodies = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    for name, text in files.items():
        assert PROJECT not in text, name
        assert folder.name not in text, name
        ours = r"hvdcloud(-build)?@my-project\.iam\.gserviceaccount\.com"
        assert "iam.gserviceaccount.com" not in re.sub(ours, "", text), name
    operations = next(
        body for name, body in bodies.items() if re.fullmatch(r"cpu-operations-[a-z0-9-]+-[a-z]\.json", name)
    )
    assert "bulkInsert" in {each["operationType"] for each in operations["items"]}
    _, lost, replacement = files["spot-serial-1.txt"].split("init: live-1 starts")
    assert "the VM is being preempted" in lost
    assert "step start" in replacement
    assert bodies["spot-maintenance.json"]["targetLink"].endswith("/live-1")
    assert {"live-0", "live-1"} <= set(bodies["cpu-timeline.json"][-2]["by_name"])
