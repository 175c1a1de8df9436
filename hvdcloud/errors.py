"""Every way in which hvdcloud can fail, and the exit code that tells a script which one it was.

Standard library only: the node program inside the image uses these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar


class ExitCode(IntEnum):
    """What the process returns. The numbers are part of the command line's contract."""

    OK = 0
    BUG = 1
    USAGE = 2
    CREDENTIALS = 3
    CAPACITY = 4
    NODE = 5
    IMAGE = 6
    JOB = 7
    TEARDOWN = 8
    CHECKPOINT = 9
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


class HvdcloudError(Exception):
    """A failure that the user can act on."""

    code = ExitCode.BUG

    def __init__(self, message: str, *, hint: str, details: str = "") -> None:
        super().__init__(message)
        self.message = message  # What went wrong, naming the object and the cause; one sentence, no full stop.
        self.hint = hint  # The next command to type, or what to change.
        self.details = details  # More lines for the user, such as the end of a build log.

    def add_details(self, *lines: str) -> None:
        """Append lines to the details; empty ones are left out."""
        self.details = "\n".join(filter(None, [self.details, *lines]))


E = TypeVar("E", bound=HvdcloudError)


def first_of(errors: Sequence[E]) -> E:
    """The first of several errors, with the messages of the others in its details."""
    errors[0].add_details(*(other.message for other in errors[1:]))
    return errors[0]


class UsageError(HvdcloudError):
    """The command line, hvdcloud.yaml or the state of things does not allow this command."""

    code = ExitCode.USAGE


class NameTakenError(UsageError):
    """Something of the wanted name exists: another command made it, or a user started it again."""


class CredentialsError(HvdcloudError):
    """Credentials, a permission or an API that is switched off."""

    code = ExitCode.CREDENTIALS


class CapacityError(HvdcloudError):
    """No capacity or no quota: machines, subnets, disk space."""

    code = ExitCode.CAPACITY


class NodeError(HvdcloudError):
    """A node did not come up, cannot be reached or was lost."""

    code = ExitCode.NODE


class ImageError(HvdcloudError):
    """An image could not be built or pushed; `details` holds the failing step's last lines."""

    code = ExitCode.IMAGE


class JobFailedError(HvdcloudError):
    """The training job ended with something else than success."""

    code = ExitCode.JOB

    def __init__(self, message: str, *, hint: str, exit_code: int, details: str = "") -> None:
        super().__init__(message, hint=hint, details=details)
        self.exit_code = exit_code  # The job's own, which is that of the first rank to fail (128 + N for signal N).


class TeardownError(HvdcloudError):
    """Something may still be there, and billing; `details` says what and how to delete it."""

    code = ExitCode.TEARDOWN


class CheckpointError(HvdcloudError):
    """A checkpoint is missing, does not verify, or is not yet on this disk."""

    code = ExitCode.CHECKPOINT


class InterruptedByUserError(HvdcloudError):
    """Ctrl-C; the message says what was left and how to continue."""

    code = ExitCode.INTERRUPTED


class OutputClosedError(InterruptedByUserError):
    """Nothing reads standard output any more, as after `| head`, or it cannot be written; without a message it is
    not worth one."""

    code = ExitCode.OUTPUT_CLOSED
