"""Calls of Google's APIs that last: our own time limits and retries, every failure an `ApiError`.

Compute Engine is called through google-cloud-compute (providers/gce/api).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from hvdcloud.errors import CredentialsError
from hvdcloud.google.credentials import innermost, login_hint
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, answer_error

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
ENDPOINT_VARIABLE = "HVDCLOUD_GOOGLE_ENDPOINT"
"""Another server than Google's for its APIs; it gets the user's credentials, so no file may name it."""
RETRY_SECONDS = 120.0
UNREACHED_SECONDS = 5.0
"""The same, where the network has not brought one answer to this process yet: it is not passing trouble."""
RETRY_BASE_SECONDS = 0.5
RETRY_CAP_SECONDS = 15.0


class ApiCalls:
    """What calls of one API share.

    Args:
        credentials: of google.auth.
        endpoint: scheme, host and port; None: that of HVDCLOUD_GOOGLE_ENDPOINT, else Google's.
        retry_seconds: after which a call that keeps failing is given up.
        service: the API, as in its address: `compute`, `iam`.
    """

    reached = False
    """Whether any API has answered this process."""

    def __init__(
        self,
        *,
        project: str,
        credentials: Any,
        endpoint: str | None = None,
        retry_seconds: float = RETRY_SECONDS,
        service: str = "compute",
    ) -> None:
        self.project = project
        self.service = service
        own = os.environ.get(ENDPOINT_VARIABLE)
        self.endpoint = (endpoint or own or f"https://{service}.googleapis.com").rstrip("/")
        self.on_retry: Callable[[str], None] = lambda _: None
        """Called for every call that failed and will be repeated."""
        self.credentials = credentials
        self.retry_seconds = retry_seconds

    def persist(
        self,
        attempt: Callable[[], T],
        *,
        what: str,
        seconds: float | None = None,
        timeouts: bool = True,
        stop: threading.Event | None = None,
    ) -> T:
        """`attempt` until it succeeds, fails for good, or its time is over.

        Args:
            what: the call, for `on_retry`.
            seconds: how long a call that keeps failing is repeated; None: `retry_seconds`.
            timeouts: whether an answer that does not come in time is a failure like others, and repeated.
            stop: once set, nothing more is repeated.

        Raises:
            ApiError: refused, or still failing after the time for retries.
            CredentialsError: the credentials are refused.
        """
        from tenacity import Retrying, retry_if_exception, sleep_using_event, stop_before_delay, wait_random_exponential

        patience = self.retry_seconds if seconds is None else seconds
        stopped = stop or threading.Event()

        def again(error: BaseException) -> bool:
            if not isinstance(error, ApiError) or error.action is not Action.RETRY:
                return False
            return timeouts or error.reason != "timeout"

        def over(state: RetryCallState) -> bool:
            left = patience if ApiCalls.reached else min(patience, UNREACHED_SECONDS)
            return stopped.is_set() or stop_before_delay(left)(state)

        def before_sleep(state: RetryCallState) -> None:
            assert state.outcome is not None
            error, pause = state.outcome.exception(), state.upcoming_sleep
            assert isinstance(error, ApiError)
            self.on_retry(f"{what}: {error.label}, again in {pause:.1f} s")

        def once() -> T:
            try:
                with api_errors(self.project, service=self.service):
                    answer = attempt()
            except ApiError as error:
                ApiCalls.reached |= error.reason != "connectionError"
                raise
            ApiCalls.reached = True
            return answer

        retrying = Retrying(
            retry=retry_if_exception(again),
            wait=wait_random_exponential(multiplier=RETRY_BASE_SECONDS, max=RETRY_CAP_SECONDS),
            stop=over,
            sleep=sleep_using_event(stopped),
            before_sleep=before_sleep,
            reraise=True,
        )
        return retrying(once)


def ask(api: ApiCalls, method: str, path: str, **options: Any) -> dict[str, Any]:
    """One request of an API whose client library is no dependency of ours: its JSON. Raises as `persist`.

    Args:
        path: below /v1/.
        options: `params` and `json`, as of requests.
    """
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(api.credentials)

    def once() -> dict[str, Any]:
        url = f"{api.endpoint}/v1/{path}"
        answer = session.request(method, url, timeout=(CONNECT_SECONDS, READ_SECONDS), **options)
        if answer.status_code >= 400:
            raise answer_error(answer.status_code, answer.content, project=api.project, service=api.service)
        content: dict[str, Any] = answer.json()
        return content

    return api.persist(once, what=f"{method} {path}")


@contextlib.contextmanager
def api_errors(project: str, *, service: str = "compute") -> Iterator[None]:
    """Turns the exceptions of google.auth and of requests into `ApiError` and `CredentialsError`."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAuthError as error:
        if isinstance(error, TransportError) or error.retryable:
            raise _not_reached(error, "connectionError", project=project, service=service) from error
        message = f"the Google credentials are not accepted: {innermost(error)}"
        raise CredentialsError(message, hint=login_hint()) from error
    except RequestException as error:
        raise _not_reached(error, _reason(error), project=project, service=service) from error


def _not_reached(error: Exception, reason: str, *, project: str, service: str) -> ApiError:
    message = f"the {service} API cannot be reached: {innermost(error)}"
    return ApiError(message=message, reason=reason, project=project, service=service)


def _reason(error: Exception) -> str:
    """`timeout` and `connectionError` pass; anything else, such as an endpoint that is not a URL, does not."""
    from requests import exceptions

    if isinstance(error, exceptions.Timeout) and not isinstance(error, exceptions.ConnectTimeout):
        return "timeout"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "certificate"
    passing = (exceptions.ConnectionError, exceptions.ChunkedEncodingError, exceptions.ContentDecodingError)
    return "connectionError" if isinstance(error, passing) else type(error).__name__
