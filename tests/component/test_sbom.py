"""One SBOM from several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hvdcloud.image.publish.sbom import document
from tests.support.sbom_contents import CONTENTS, DIGEST


def test_the_same_image_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "import sys; from hvdcloud.image.publish.sbom import document;"
        "from tests.support.sbom_contents import CONTENTS, DIGEST;"
        "sys.stdout.buffer.write(document(CONTENTS, name='gcr.io/lab/digits', digest=DIGEST))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert made == {document(CONTENTS, name="gcr.io/lab/digits", digest=DIGEST)}
    assert made != {document(CONTENTS, name="gcr.io/lab/digits", digest=DIGEST.replace("0", "1"))}
