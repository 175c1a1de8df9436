"""nvidia-smi is asked. It hangs when a GPU has fallen off its bus, and then does not even end when it is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from hvdcloud.node import machine

_PATH = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoAnswerError(Exception):
    """Why nvidia-smi did not answer."""


class NvidiaSmi:
    """Asks one question at a time.

    Args:
        program: its path; None: where this image has it.
    """

    def __init__(self, program: str | None = None) -> None:
        image = machine.image_environment()
        path = ":".join(filter(None, [image.get("PATH"), _PATH]))
        self.program = program or shutil.which("nvidia-smi", path=path)
        """None: this image has none."""
        # Without the mark of the run, by which its processes are found and ended.
        self._environment = {"PATH": _PATH, "LANG": "C"}
        if libraries := image.get("LD_LIBRARY_PATH"):
            self._environment["LD_LIBRARY_PATH"] = libraries
        self._hanging: subprocess.Popen[str] | None = None

    def ask(self, fields: Sequence[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
        """What it says of these fields (`nvidia-smi --help-query-gpu`): a line for each GPU, without units.

        Raises NoAnswerError: it cannot be started, does not answer in time, or still hangs from an earlier question.
        """
        too_long = f"nvidia-smi did not answer within {seconds:g} s"
        if self._hanging is not None and self._hanging.poll() is None:
            raise NoAnswerError(too_long)
        try:
            process = subprocess.Popen(
                [self.program or "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswerError(f"nvidia-smi cannot be started: {error.strerror}") from error
        try:
            output, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Nothing waits for its end, while it is stuck in the driver.
            process.kill()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._hanging = process
            raise NoAnswerError(too_long) from None
        return subprocess.CompletedProcess(process.args, process.returncode, output, complaint)
