"""One call of the Compute API, or of another API of Google's, with our own time limits, retries and errors.

What changes something goes through google-cloud-compute's REST clients. The library would never retry it; its
long-running operations poll the default endpoint whatever `api_endpoint` says and take an operation that is DONE with
`error` but no HTTP status for a success. So only the `…_unary` methods are used, never `ExtendedOperation.result()`,
and the library's own retries are off.

What only reads is plain HTTP with the same credentials: the library (1.57) takes 2.4 s of CPU to load, which `list` and
`status` need not wait for, and for a list of 256 VMs 119 ms, where JSON's own parser takes 3.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from hvdcloud.errors import CredentialsError
from hvdcloud.google.credentials import innermost, login_hint
from hvdcloud.google.error_rule import Action
from hvdcloud.google.errors import ApiError, answer_error

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

BASE_PATH = "/compute/v1/"
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
WAIT_SECONDS = 150.0
"""`operations.wait` answers within 2 minutes (discovery document)."""
ENDPOINT_VARIABLE = "HVDCLOUD_GOOGLE_ENDPOINT"
"""Another server than Google's for its APIs; it gets the user's credentials, so no file may name it."""
RETRY_SECONDS = 120.0
UNREACHED_SECONDS = 5.0
"""The same, where the network has not brought one answer to this process yet: it is not passing trouble."""
RETRY_BASE_SECONDS = 0.5
RETRY_CAP_SECONDS = 15.0

OnRetry = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    content_type: str
    body: bytes


def ignore_retry(_: str) -> None:
    """For callers that do not show retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a call that keeps failing is repeated."""

    seconds: float
    timeouts: bool = True
    """An answer that does not come in time is a failure like others; False: the caller wants to know of it."""
    stop: threading.Event | None = None
    """Once set, nothing more is repeated."""


class Transport:
    """Calls that last: retried with full jitter, every failure an `ApiError`.

    Args:
        credentials: of google.auth.
        endpoint: scheme, host and port; None: that of HVDCLOUD_GOOGLE_ENDPOINT, else Google's.
        retry_seconds: after which a call that keeps failing is given up.
        service: the API, as in its address: `compute`, `serviceusage`. Only Compute has `call`.
        base_path: before every path of `read` and `post`.
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
        base_path: str = BASE_PATH,
    ) -> None:
        self.project = project
        self.service = service
        own = os.environ.get(ENDPOINT_VARIABLE)
        self.endpoint = (endpoint or own or f"https://{service}.googleapis.com").rstrip("/")
        self._base_path = base_path
        self.on_retry: OnRetry = ignore_retry
        # A service account signs its own tokens, as it does in the library: https://google.aip.dev/auth/4111
        own_tokens = getattr(credentials, "with_always_use_jwt_access", None)
        self._credentials = own_tokens(always_use_jwt_access=True) if own_tokens else credentials
        self._retry_seconds = retry_seconds
        self._services: dict[str, Any] = {}
        self._lock = threading.Lock()

    def call(
        self,
        service: str,
        method: str,
        fields: Mapping[str, Any],
        *,
        body: tuple[str, str, Mapping[str, Any]] | None = None,
        read_seconds: float = READ_SECONDS,
        patience: Patience | None = None,
    ) -> dict[str, Any]:
        """One method of one service, such as `Instances` `bulk_insert_unary`; the answer as the API's own JSON.

        Args:
            fields: the request's parameters under the library's names. `project` is added.
            body: request field, message type and JSON of the body. It is sent as it is; an unknown key is refused.
            read_seconds: how long the answer may take.
            patience: None: the client's own.

        Raises as `read`.
        """
        from google.api_core.timeout import ConstantTimeout
        from google.cloud import compute_v1

        request: dict[str, Any] = {"project": self.project, **fields}
        if body is not None:
            name, message, content = body
            request[name] = getattr(compute_v1, message).from_json(json.dumps(content))
        send = getattr(self._service(service), method)
        timeout = ConstantTimeout((CONNECT_SECONDS, read_seconds))

        def attempt() -> dict[str, Any]:
            with _library_errors(self.project):
                answer = send(request=request, retry=None, timeout=timeout)
            plain = {"preserving_proto_field_name": False, "always_print_fields_with_no_presence": False}
            content: dict[str, Any] = type(answer).to_dict(answer, use_integers_for_enums=False, **plain)
            return content

        return self.persist(attempt, what=f"{service}.{method}", patience=patience)

    def read(
        self,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        check: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """One GET; the answer as the API's own JSON.

        Args:
            path: `projects/PROJECT/zones`.
            parameters: under the API's names; a list is given as often as it has items.
            check: raises an `ApiError` for an answer that is none; it is retried like any other.

        Raises:
            ApiError: refused, or still failing after the time for retries.
            CredentialsError: the credentials are refused.
        """
        query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""

        def attempt() -> dict[str, Any]:
            content = self.ask("GET", f"{self._base_path}{quote(path, safe='/:')}{query}")
            if check is not None:
                check(content)
            return content

        return self.persist(attempt, what=f"GET {path}")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One POST of a method that changes nothing, such as `…:testIamPermissions`; as `read` otherwise."""
        where = f"{self._base_path}{quote(path, safe='/:')}"
        return self.persist(lambda: self.ask("POST", where, body), what=f"POST {path}")

    def pages(
        self, path: str, parameters: Mapping[str, Any], *, check: Callable[[dict[str, Any]], None] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every page of a list. Each has its own retries."""
        token = None
        while True:
            page = self.read(path, {**parameters, **({"pageToken": token} if token else {})}, check=check)
            yield page
            token = page.get("nextPageToken")
            if not token:
                return

    def persist(self, attempt: Callable[[], T], *, what: str, patience: Patience | None = None) -> T:
        """`attempt` until it succeeds, fails for good, or its time is over; `what` is the call, for `on_retry`."""
        from tenacity import (
            Retrying,
            retry_if_exception,
            sleep_using_event,
            stop_before_delay,
            wait_random_exponential,
        )

        patience = patience or Patience(seconds=self._retry_seconds)
        stop = patience.stop or threading.Event()

        def again(error: BaseException) -> bool:
            if not isinstance(error, ApiError) or error.action is not Action.RETRY:
                return False
            return patience.timeouts or error.reason != "timeout"

        def before_sleep(state: RetryCallState) -> None:
            assert state.outcome is not None
            assert state.next_action is not None
            error = state.outcome.exception()
            assert isinstance(error, ApiError)
            self.on_retry(f"{what}: {error.label}, again in {state.next_action.sleep:.1f} s")

        def translated() -> T:
            try:
                with api_errors(self.project, service=self.service):
                    answer = attempt()
                Transport.reached = True
                return answer
            except ApiError as error:
                Transport.reached |= error.reason != "connectionError"
                error.quota_project = getattr(self._credentials, "quota_project_id", None) or ""
                raise

        def over(state: RetryCallState) -> bool:
            seconds = patience.seconds if Transport.reached else min(patience.seconds, UNREACHED_SECONDS)
            return stop.is_set() or stop_before_delay(seconds)(state)

        retrying = Retrying(
            retry=retry_if_exception(again),
            wait=wait_random_exponential(multiplier=RETRY_BASE_SECONDS, max=RETRY_CAP_SECONDS),
            stop=over,
            sleep=sleep_using_event(stop),
            before_sleep=before_sleep,
            reraise=True,
        )
        return retrying(translated)

    def send(self, method: str, path: str, *, body: bytes | None = None, content_type: str | None = None) -> Answer:
        """One plain HTTP request, for what the library has no method for; `path` begins with a slash.

        Not repeated: call it inside `persist`, which also translates what it raises.
        """
        headers = {"Content-Type": content_type} if content_type else {}
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        answer = self._session().request(method, self.endpoint + path, data=body, headers=headers, timeout=timeout)
        return Answer(answer.status_code, answer.headers.get("Content-Type", ""), answer.content)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request and its answer, both JSON; as `send` otherwise. Raises ApiError: it is refused."""
        sent = None if body is None else json.dumps(body).encode()
        answer = self.send(method, path, body=sent, content_type="application/json" if sent else None)
        if answer.status >= 400:
            raise answer_error(answer.status, answer.body, project=self.project, service=self.service)
        try:
            content = json.loads(answer.body)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise _not_json(self.project, service=self.service)
        return content

    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        with self._lock:
            if "session" not in self._services:
                self._services["session"] = AuthorizedSession(self._credentials)
            return self._services["session"]

    def _service(self, name: str) -> Any:
        from google.api_core.client_options import ClientOptions
        from google.cloud import compute_v1

        with self._lock:
            if name not in self._services:
                self._services[name] = getattr(compute_v1, f"{name}Client")(
                    credentials=self._credentials, client_options=ClientOptions(api_endpoint=self.endpoint)
                )
            return self._services[name]


@contextlib.contextmanager
def api_errors(project: str, *, service: str = "compute") -> Iterator[None]:
    """Turns the exceptions of google.auth and of requests into `ApiError` and `CredentialsError`."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAuthError as error:
        if isinstance(error, TransportError) or error.retryable:
            reason, said = "connectionError", innermost(error)
            raise ApiError(message=said, reason=reason, project=project, service=service) from error
        message = f"the Google credentials are not accepted: {innermost(error)}"
        raise CredentialsError(message, hint=login_hint()) from error
    except RequestException as error:
        raise ApiError(message=innermost(error), reason=_reason(error), project=project, service=service) from error


@contextlib.contextmanager
def _library_errors(project: str) -> Iterator[None]:
    """Turns what google-cloud-compute makes of an HTTP answer into `ApiError`."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.protobuf.json_format import ParseError

    try:
        yield
    except GoogleAPICallError as error:
        body = error.response.content if error.response is not None else error.message
        raise answer_error(int(error.code or 0), body, project=project) from error
    except ParseError as error:
        raise _not_json(project) from error


def _not_json(project: str, *, service: str = "compute") -> ApiError:
    """A proxy or a captive portal that says 200."""
    message = "the answer is not the API's JSON"
    return ApiError(message=message, status=502, reason="notJson", project=project, service=service)


def _reason(error: Exception) -> str:
    """`timeout` and `connectionError` pass; anything else, such as an endpoint that is not a URL, does not."""
    from requests import exceptions

    if isinstance(error, exceptions.Timeout) and not isinstance(error, exceptions.ConnectTimeout):
        return "timeout"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "certificate"
    passing = (exceptions.ConnectionError, exceptions.ChunkedEncodingError, exceptions.ContentDecodingError)
    return "connectionError" if isinstance(error, passing) else type(error).__name__
