"""`hvdcloud-node VERB …`: one line of JSON in, one line of JSON out.

Exit code 0 if it worked; else 1, and the line on standard output is {"error": …, "hint": …}. `logs` writes the log
there, and `send` objects, so their line, the run's state or the error, is the last one of standard error. `rank` and
`entrypoint` are programs of their own: their exit codes and output are the user's command's and the container's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.json_values import parse_object

_USAGE = (
    "entrypoint | join | code | prepare | launch RUN | supervisor RUN | admit RUN | dismiss RUN | "
    "agent RUN [--probe] | rank RUN | every-node RUN | one-node RUN PORT NODE… | "
    "logs RUN [--follow] [--offset N] | state [RUN] | look [--offset N] | "
    "stacks RUN | stop RUN | flush | bucket | send | data-fetcher REQUEST | bucket-proof | "
    "poweroff | idle | end-when-idle SECONDS | end-at-limit [AT]"
)
# What only the laptop asks for: activity from outside.
_FROM_OUTSIDE = (
    *("join", "code", "prepare", "launch", "admit", "dismiss", "logs", "state", "look", "stacks", "stop", "flush"),
    *("bucket", "send"),
)


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
    """Do it; each verb loads what it needs."""
    match [verb, *rest]:
        case ["rank", run]:
            from hvdcloud.node.run import rank

            return rank.main(run)
        case ["every-node", run]:
            from hvdcloud.node.run.launcher import every_node

            return every_node.every_node(run)
        case ["one-node", run, port, *nodes] if nodes:
            from hvdcloud.node.run.launcher import every_node

            return every_node.one_node(run, port, nodes)
        case ["agent", run, *options] if options in ([], ["--probe"]):
            from hvdcloud.node.run import agent

            return agent.main(run, probe=bool(options))
        case ["entrypoint"]:
            from hvdcloud.node.boot import entrypoint

            return entrypoint.main()
        case ["logs", run, *_]:
            from hvdcloud.node.run import follow

            return follow.main(run, offset=_offset(rest) or 0, follow="--follow" in rest, output=sys.stdout.buffer)
        case ["join"]:
            from hvdcloud.node.mesh import join

            return join.main(_request(verb))
        case ["code" | "prepare"]:
            from hvdcloud.node.run import prepare

            request = _request(verb)
            return prepare.code(request) if verb == "code" else prepare.main(request, sys.stdin.buffer)
        case ["launch" | "supervisor", run]:
            from hvdcloud.node import launch

            return launch.main(run) if verb == "launch" else launch.supervise(run)
        case ["admit" | "dismiss", run]:
            from hvdcloud.node.elastic import admission

            return admission.ask(run, {**_request(verb), "type": verb})
        case ["look", *_]:
            from hvdcloud.node.monitor import snapshot

            return snapshot.main(offset=_offset(rest))
        case ["state", *runs] if len(runs) <= 1:
            from hvdcloud.node.run import control

            return control.show(runs[0] if runs else None)
        case ["stop" | "stacks", run]:
            from hvdcloud.node.run import control

            return control.stop(run) if verb == "stop" else control.stacks(run)
        case ["flush"]:
            from hvdcloud.node.run import control

            return control.flush()
        case ["data-fetcher", request]:
            from hvdcloud.node.data import fetcher

            return fetcher.main(request)
        case ["bucket" | "send"]:
            from hvdcloud.node.uploads import serve

            if verb == "send":
                return serve.send(_request(verb), sys.stdin.buffer, sys.stdout.buffer)
            return serve.keep(_request(verb), sys.stdin.buffer)
        case ["bucket-proof"]:
            from hvdcloud.node.boot import bucket_proof

            return bucket_proof.main()
        case ["poweroff"]:
            from hvdcloud.node.mesh import poweroff

            return poweroff.switch_off()
        case ["end-at-limit", *at] if len(at) <= 1:
            from hvdcloud.node.boot import time_limit

            return time_limit.end_at_limit(*map(float, at))
        case ["idle"]:
            from hvdcloud.node.boot import idle

            return idle.answer()
        case ["end-when-idle", seconds]:
            from hvdcloud.node.boot import idle

            return idle.main(float(seconds))
    raise UsageError(f"hvdcloud-node cannot do {' '.join([verb, *rest])!r}", hint=_USAGE)


def _offset(rest: list[str]) -> int | None:
    """The number behind `--offset`; None: it is not there."""
    if "--offset" not in rest:
        return None
    try:
        return max(0, int(rest[rest.index("--offset") + 1]))
    except (IndexError, ValueError):
        raise UsageError("--offset needs a number of bytes", hint=_USAGE) from None


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
    # The standard output of a rank, or a launcher, is the log of the run, and that of `logs`: people read it, not
    # programs. That of `send` are objects.
    if verb in ("rank", "every-node", "one-node"):
        sys.stderr.write(f"hvdcloud: {error.message}\n")
        return 1
    stream = sys.stderr if verb in ("logs", "send") else sys.stdout
    stream.write(json.dumps(answer) + "\n")
    stream.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
