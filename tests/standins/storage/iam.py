"""Who may do what with objects: a bucket's IAM policy, with conditions, as Google evaluates it.

Google's documentation does not say what an account that may create and not delete is told about a name that is taken,
where its request is to fail for that (`ifGenerationMatch=0`): 412 or 403. `conditions_first` has it either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.standins.conditions import holds
from tests.standins.storage.errors import ApiError

# https://cloud.google.com/storage/docs/access-control/iam-roles
_EVERYTHING = frozenset(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update"))
ROLES = {
    "roles/storage.objectCreator": frozenset({"storage.objects.create"}),
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
    "roles/storage.objectUser": _EVERYTHING,
    "roles/storage.admin": _EVERYTHING,
}


class Iam:
    """A policy of every bucket of a server.

    Args:
        member: of whom a bearer token is: `serviceAccount:nodes@p.iam.gserviceaccount.com`.
        bindings: `{"role", "members", "condition": {"expression"}}`, as in a policy.
    """

    def __init__(
        self,
        member: Callable[[str], str],
        bindings: Sequence[Mapping[str, Any]],
        *,
        conditions_first: bool = False,
    ) -> None:
        self._member = member
        self.bindings = bindings
        self.conditions_first = conditions_first

    def allows(self, token: str, permission: str, *, bucket: str, name: str | None) -> bool:
        """Whether a binding gives the token's owner the permission on an object, or (`name` None) on the bucket."""
        resource = f"projects/_/buckets/{bucket}" + ("" if name is None else f"/objects/{name}")
        kind = f"storage.googleapis.com/{'Bucket' if name is None else 'Object'}"
        return any(
            self._member(token) in binding["members"]
            and permission in ROLES[binding["role"]]
            and ("condition" not in binding or holds(binding["condition"]["expression"], name=resource, kind=kind))
            for binding in self.bindings
        )

    def require(self, token: str, permission: str, *, bucket: str, name: str | None) -> None:
        """Raises ApiError, 403 in Google's words: it does not."""
        if self.allows(token, permission, bucket=bucket, name=name):
            return
        who = self._member(token).partition(":")[2] or "Anonymous caller"
        what = "object" if name is not None else "bucket"
        message = (
            f"{who} does not have {permission} access to the Google Cloud Storage {what}. Permission '{permission}' "
            "denied on resource (or it may not exist)."
        )
        raise ApiError(403, "forbidden", message)
