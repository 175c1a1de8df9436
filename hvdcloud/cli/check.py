"""`check`: its arguments, and how its result looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation, Yes
from hvdcloud.units import counted
from hvdcloud.units import seconds as duration
from hvdcloud.units import size as amount

if TYPE_CHECKING:
    from hvdcloud.check.findings import AllReduce
    from hvdcloud.check.verdict import NodeVerdict
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.check import CheckResult

SHOWN_PAIRS = 15
SECONDS, MEGABYTES = 30.0, 32


def check(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1.0, max=3600.0, help="Measure all-reduces for so long.")
    ] = SECONDS,
    size: Annotated[
        int, typer.Option("--size", metavar="MB", min=1, max=4096, help="The all-reduces' message, in MB.")
    ] = MEGABYTES,
    replace_bad: Annotated[
        bool, typer.Option("--replace-bad", help="Replace bad nodes by new ones, and measure again.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace nodes also if their checkpoints are not all in the bucket.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Measure the nodes before a long run, and name slow and bad ones.

    Every node's processor, disk, bucket and GPUs, and Horovod's all-reduces between nodes in pairs and all together,
    compared with the other nodes and with what the machine type promises. Exit code 5: a node is bad.

    \b
    Example:
      $ hvdcloud check
      $ hvdcloud check --seconds 120 --size 256
      $ hvdcloud check --replace-bad --json
    """
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle.check import check as measure

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = measure(
            experiment,
            seconds=seconds,
            size=size << 20,
            replace_bad=replace_bad,
            consent=Consent(given=yes),
            force=force,
        )
        invocation.exit_code = result.exit_code
        show_check(invocation.console, result, replace_bad=replace_bad)


def show_check(console: Console, result: CheckResult, *, replace_bad: bool) -> None:
    """The nodes, why they are not ok, the pairs, and what to do."""
    gpus = any(each.machine.gpus_expected for each in result.nodes)
    columns = [
        "NODE",
        "HEALTH",
        "CPU",
        "DISK",
        "BUCKET UP / DOWN",
        "ALL-REDUCE",
        "LATENCY",
        *(["GPUS"] if gpus else []),
    ]
    console.table(columns, [_row(each, gpus=gpus) for each in result.nodes])
    for each in result.nodes:
        for reason in each.reasons:
            console.answer(f"{each.node} is {each.health.value}: {reason}")
    if len(result.pairs) > 1:
        shown = sorted(result.pairs, key=lambda pair: pair.bandwidth or 0.0)[:SHOWN_PAIRS]
        console.table(
            ["PAIR", "ALL-REDUCE", "LATENCY"], [[" - ".join(each.nodes), *_collective(each)] for each in shown]
        )
    if (all_ranks := result.together) is not None:
        bandwidth, latency = _collective(all_ranks)
        ranks = counted(all_ranks.ranks, "rank") if all_ranks.ranks else "all ranks"
        console.answer(f"{ranks} together: {bandwidth}" + (f", latency {latency}" if latency else ""))
    if result.replaced:
        console.answer(f"replaced: {', '.join(each.node for each in result.replaced)}")
    if result.bad:
        one = len(result.bad) == 1
        hint = (
            "still bad after its replacement"
            if replace_bad
            else "hvdcloud check --replace-bad replaces " + ("it" if one else "them")
        )
        console.answer(f"{', '.join(result.bad)} {'is' if one else 'are'} bad; {hint}")
    else:
        slow = [each.node for each in result.nodes if each.reasons]
        said = f"{', '.join(slow)} slow, none bad" if slow else f"{counted(len(result.nodes), 'node')} ok"
        console.result([said, duration(result.seconds)])


def _row(verdict: NodeVerdict, *, gpus: bool) -> list[str]:
    machine = verdict.machine
    latency = f"{1000 * verdict.latency:.1f} ms" if verdict.latency is not None else "-"
    row = [
        verdict.node,
        verdict.health.value,
        _rate(machine.cpu),
        _rate(machine.disk_write),
        f"{_rate(machine.bucket_up)} / {_rate(machine.bucket_down)}",
        _rate(verdict.bandwidth),
        latency,
    ]
    return [*row, *([f"{len(machine.gpus)} of {machine.gpus_expected}"] if gpus else [])]


def _collective(found: AllReduce) -> list[str]:
    """Bandwidth and latency; or why there are none."""
    if found.error:
        return [found.error, ""]
    return [_rate(found.bandwidth), f"{1000 * (found.latency or 0.0):.1f} ms"]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{amount(int(value))}/s"
