"""Whether the project's APIs are on."""

from __future__ import annotations

from tests.standins.compute.errors import ApiError

_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


class Google:
    """What a test may change.

    Attributes:
        off: services that are switched off in the project: `compute.googleapis.com`.
    """

    def __init__(self, *, number: str) -> None:
        self._number = number
        self.off: set[str] = set()

    def check_on(self, service: str) -> None:
        """
        Raises:
            ApiError: 403, the API is switched off.
        """
        if service not in self.off:
            return
        message = (
            f"{service} has not been used in project {self._number} before or it is disabled. Enable it by visiting "
            f"https://console.developers.google.com/apis/api/{service}/overview?project={self._number} then retry."
        )
        info = {
            "@type": _INFO,
            "reason": "SERVICE_DISABLED",
            "domain": "googleapis.com",
            "metadata": {"consumer": f"projects/{self._number}", "service": service},
        }
        raise ApiError(403, "accessNotConfigured", message, details=[info])
