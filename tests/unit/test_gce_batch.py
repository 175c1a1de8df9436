"""Many reads in one request, and not too many a minute."""

from __future__ import annotations

import pytest

from hvdcloud.google.batch import TokenBucket, decode, encode
from hvdcloud.google.errors import Action, ApiError
from hvdcloud.google.http import Answer

# As https://cloud.google.com/compute/docs/api/how-tos/batch shows it, in an order of its own.
BODY = (
    b"--batch_foobarbaz\r\nContent-Type: application/http\r\nContent-ID: <response-1>\r\n\r\n"
    b'HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\r\n "error": {}}\r\n'
    b"--batch_foobarbaz\r\nContent-Type: application/http\r\nContent-ID: <response-0>\r\n\r\n"
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=UTF-8\r\nETag: "a/b"\r\n\r\n{"name": "\xc3\xa4"}\r\n'
    b"--batch_foobarbaz--\r\n"
)
WHOLE = Answer(200, "multipart/mixed; boundary=batch_foobarbaz", BODY)


def test_each_call_is_a_part_with_its_number() -> None:
    content_type, body = encode(["/compute/v1/a?x=1", "/compute/v1/b"])
    boundary = content_type.removeprefix("multipart/mixed; boundary=").encode()
    first, second = body.split(b"--" + boundary)[1:3]
    assert first.startswith(
        b"\r\nContent-Type: application/http\r\nContent-ID: <0>\r\n\r\nGET /compute/v1/a?x=1 HTTP/1.1"
    )
    assert b"Content-ID: <1>\r\n\r\nGET /compute/v1/b HTTP/1.1\r\n" in second
    assert body.endswith(b"--" + boundary + b"--\r\n")


def test_answers_come_back_in_the_order_of_the_calls() -> None:
    first, second = decode(WHOLE, calls=2)
    assert (first.status, first.body) == (200, '{"name": "ä"}'.encode())
    assert (second.status, second.body) == (404, b'{\n "error": {}}')


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, WHOLE.content_type, BODY[:150]),
        Answer(200, WHOLE.content_type, b""),
        Answer(200, "text/html", b"<html>sign in</html>"),
        Answer(200, WHOLE.content_type, BODY.replace(b"<response-1>", b"<response-7>")),
        Answer(200, WHOLE.content_type, BODY.replace(b"<response-1>", b"<what>")),
        Answer(200, WHOLE.content_type, BODY.replace(b"HTTP/1.1 404 Not Found", b"")),
    ],
    ids=["cut", "empty", "a page", "another number", "no number", "no status"],
)
def test_what_is_no_whole_answer_is_worth_another_try(answer: Answer) -> None:
    with pytest.raises(ApiError) as raised:
        decode(answer, calls=2)
    assert raised.value.action is Action.RETRY


def test_a_burst_goes_at_once_and_the_rest_at_the_pace() -> None:
    seconds = [1000.0]
    waits: list[float] = []
    bucket = TokenBucket(burst=10, per_second=100, now=lambda: seconds[0], sleep=waits.append)
    bucket.take(10)
    assert waits == []
    bucket.take(20)
    assert waits == [pytest.approx(0.2)]
    # Who asks while another one waits comes after it.
    bucket.take(5)
    assert waits[1:] == [pytest.approx(0.25)]
    seconds[0] += 0.25 + 0.1
    bucket.take(10)
    assert len(waits) == 2, "its tokens have come back"
    # However long nothing went: no more than a burst.
    seconds[0] += 3600
    bucket.take(11)
    assert waits[2:] == [pytest.approx(0.01)]
