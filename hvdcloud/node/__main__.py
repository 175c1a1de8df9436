"""`hvdcloud-node VERB …`: one line of JSON in, one line of JSON out.

Exit code 0 if it worked; else 1, and the line on standard output is {"error": …, "hint": …}. `logs` writes the log
there, so its line, the run's state or the error, is the last one of standard error. `rank` and `entrypoint` are
programs of their own: their exit codes and output are the user's command's and the container's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.json_values import parse_object

_USAGE = (
    "entrypoint | join | code | prepare | launch RUN | admit RUN | dismiss RUN | agent RUN [--probe] | rank RUN | "
    "logs RUN [--follow] [--offset N] | "
    "state [RUN] | look [--offset N] | stacks RUN | stop RUN | flush | bucket | data | data-state | "
    "data-fetcher | bucket-proof | notify RUN | "
    "leave [WHY] | poweroff | idle | end-if-idle | end-at-limit SECONDS"
)


# What only the laptop asks for: activity from outside.
_FROM_OUTSIDE = {
    *("join", "code", "prepare", "launch", "admit", "dismiss", "logs", "state", "look", "stacks", "stop", "flush"),
    *("bucket", "data"),
}


def main(arguments: list[str]) -> int:
    """Run one verb; returns the process's exit code."""
    verb, *rest = arguments or [""]
    if verb in _FROM_OUTSIDE:
        from hvdcloud.node.boot import activity

        activity.mark()
    try:
        answer = _dispatch(verb, rest)
    except HvdcloudError as error:
        return _fail(verb, error)
    except OSError as error:
        hint = "hvdcloud ssh 0 df -h shows whether the disk is full"
        return _fail(verb, HvdcloudError(f"{verb}: {error}", hint=hint))
    if isinstance(answer, int):
        return answer
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def _dispatch(verb: str, rest: list[str]) -> dict[str, Any] | int:
    if verb == "rank":
        from hvdcloud.node.run import rank

        return rank.main(_one(verb, rest))
    if verb == "agent":
        from hvdcloud.node.run import agent

        return agent.main(_one(verb, [each for each in rest if each != "--probe"]), probe="--probe" in rest)
    if verb == "entrypoint":
        from hvdcloud.node.boot import entrypoint

        return entrypoint.main()
    if verb == "logs":
        return _logs(rest)
    if verb == "join":
        from hvdcloud.node.mesh import join

        return join.main(_request(verb))
    if verb in ("code", "prepare"):
        from hvdcloud.node.run import prepare

        request = _request(verb)
        return prepare.code(request) if verb == "code" else prepare.main(request, sys.stdin.buffer)
    if verb == "launch":
        from hvdcloud.node import launch

        return launch.main(_one(verb, rest))
    if verb in ("admit", "dismiss"):
        from hvdcloud.node.elastic import control_socket

        return control_socket.ask(_one(verb, rest), {**_request(verb), "type": verb})
    if verb == "look":
        from hvdcloud.node.monitor import snapshot

        offset, rest = _offset(verb, rest)
        return snapshot.main(offset=offset)
    if verb in ("state", "stop", "flush", "stacks"):
        from hvdcloud.node.run import control

        if verb == "state":
            return control.show(rest[0] if rest else None)
        if verb == "stop":
            return control.stop(_one(verb, rest))
        if verb == "stacks":
            return control.stacks(_one(verb, rest))
        return control.flush()
    if verb in ("data", "data-state", "data-fetcher"):
        from hvdcloud.node.data import fetcher

        if verb == "data":
            return fetcher.take(_request(verb))
        return fetcher.show() if verb == "data-state" else fetcher.main()
    if verb == "bucket":
        from hvdcloud.node.uploads import serve

        return serve.main(_request(verb))
    if verb == "bucket-proof":
        from hvdcloud.node.boot import bucket_proof

        return bucket_proof.main()
    if verb == "notify":
        from hvdcloud.node import notify

        if len(rest) != 1:
            raise UsageError(f"hvdcloud-node {verb} needs a run", hint=_USAGE)
        return notify.main(*rest)
    if verb == "poweroff":
        from hvdcloud.node.mesh import poweroff

        return poweroff.switch_off()
    if verb == "leave":
        from hvdcloud.node.uploads import drain

        return drain.main(rest)
    if verb == "end-at-limit":
        from hvdcloud.node.boot import time_limit

        return time_limit.end_at_limit(float(rest[0]) if rest else 0.0)
    if verb in ("idle", "end-if-idle"):
        from hvdcloud.node.boot import idle

        return idle.answer() if verb == "idle" else idle.end_if_idle()
    raise UsageError(f"hvdcloud-node has no verb {verb!r}", hint=_USAGE)


def _logs(rest: list[str]) -> int:
    from hvdcloud.node.run import follow as logs

    follow = "--follow" in rest
    rest = [each for each in rest if each != "--follow"]
    offset, rest = _offset("logs", rest)
    return logs.main(_one("logs", rest), offset=offset or 0, follow=follow, output=sys.stdout.buffer)


def _offset(verb: str, rest: list[str]) -> tuple[int | None, list[str]]:
    if "--offset" not in rest:
        return None, rest
    at = rest.index("--offset")
    try:
        return max(0, int(rest[at + 1])), rest[:at] + rest[at + 2 :]
    except (IndexError, ValueError):
        raise UsageError(f"{verb}: --offset needs a number of bytes", hint=_USAGE) from None


def _one(verb: str, rest: list[str]) -> str:
    if len(rest) != 1:
        raise UsageError(f"hvdcloud-node {verb} needs exactly one run", hint=_USAGE)
    return rest[0]


def _request(verb: str) -> dict[str, Any]:
    value = parse_object(sys.stdin.buffer.readline())
    if value is None:
        hint = "the image and hvdcloud must be the same version: hvdcloud build"
        raise UsageError(f"hvdcloud-node {verb}: standard input is not one line of JSON", hint=hint)
    return value


def _fail(verb: str, error: HvdcloudError) -> int:
    answer = {"error": error.message, "hint": error.hint}
    if active := getattr(error, "active", None):
        answer["active"] = active
    # The standard output of a rank is the log of the run, and that of `logs`: people read it, not programs.
    if verb == "rank":
        sys.stderr.write(f"hvdcloud: {error.message}\n")
        return 1
    stream = sys.stderr if verb == "logs" else sys.stdout
    stream.write(json.dumps(answer) + "\n")
    stream.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
