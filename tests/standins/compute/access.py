"""Who may do what: permissions by e-mail address, as IAM would grant them to the whole project or to one resource.

https://cloud.google.com/compute/docs/access/iam lists which permission each method needs.
"""

from __future__ import annotations

import threading
from fnmatch import fnmatchcase


class Access:
    """The project's policy.

    Args:
        owner: the account that may do everything unless something is denied to it.
    """

    def __init__(self, owner: str) -> None:
        self._lock = threading.Lock()
        self._owner = owner
        self._allowed: list[tuple[str, str, str]] = []
        self._denied: list[tuple[str, str, str]] = []

    def allow(self, email: str, *permissions: str, resource: str = "*") -> None:
        """Grant.

        Args:
            permissions: names or patterns: `compute.instances.delete`, `compute.*`.
            resource: pattern of what it holds for: `projects/*/zones/*/instances/digits-*`.
        """
        with self._lock:
            self._allowed += [(email, permission, resource) for permission in permissions]

    def deny(self, email: str, *permissions: str, resource: str = "*") -> None:
        """Take away, even if it is granted; also from the owner."""
        with self._lock:
            self._denied += [(email, permission, resource) for permission in permissions]

    def may(self, email: str, permission: str, *, resource: str = "") -> bool:
        """Whether the account has the permission on a resource, `projects/P/zones/Z/instances/NAME`."""
        with self._lock:
            if _holds(self._denied, email, permission, resource):
                return False
            return email == self._owner or _holds(self._allowed, email, permission, resource)

    def clear(self) -> None:
        """As at the start."""
        with self._lock:
            self._allowed.clear()
            self._denied.clear()


def _holds(grants: list[tuple[str, str, str]], email: str, permission: str, resource: str) -> bool:
    return any(
        who == email and fnmatchcase(permission, what) and fnmatchcase(resource, where) for who, what, where in grants
    )
