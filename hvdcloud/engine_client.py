"""docker-py's client, in which an engine that does not answer is an error that names it.

docker-py passes on what requests raises. It is made into an error here, since here every call passes. Importing this
module imports docker.
"""

from __future__ import annotations

from typing import Any

import docker
from docker.api.client import APIClient
from requests.exceptions import ChunkedEncodingError, RequestException, Timeout
from requests.exceptions import ConnectionError as ConnectionFailedError
from requests.models import PreparedRequest, Response

from hvdcloud.errors import NodeError

ANSWER_HINT = "docker info answers as soon as the engine does; then try the same command again"


class EngineLostError(NodeError, RequestException):
    """The engine closed the connection, or cannot be reached; it may carry the request out all the same.

    Also a RequestException, as docker-py would raise: callers that can do without the answer catch that.
    """


class EngineSilentError(EngineLostError):
    """The engine did not answer a request in time."""


class EngineClient(docker.DockerClient):
    """docker-py's client. Each request may raise EngineLostError, beside what docker-py documents.

    Args:
        address: the engine, in the user's words.
        timeout: seconds for which one request may be silent.
        settings: docker-py's other arguments.
    """

    def __init__(self, *, address: str, timeout: int, **settings: Any) -> None:
        self.api = _Api(address=address, timeout=timeout, **settings)


class _Api(APIClient):
    def __init__(self, *, address: str, **settings: Any) -> None:
        self._address = address
        super().__init__(**settings)

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Send one request, as requests does.

        Raises:
            EngineLostError: no answer came.
        """
        try:
            return super().send(request, **options)
        except Timeout as error:
            message = f"the Docker engine at {self._address} did not answer within {self.timeout} s"
            raise EngineSilentError(message, hint=ANSWER_HINT) from error
        except (ConnectionFailedError, ChunkedEncodingError) as error:
            message = f"the connection to the Docker engine at {self._address} was lost"
            raise EngineLostError(message, hint=ANSWER_HINT) from error
