"""The command offers, and how offers are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation, Nodes
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.providers.pricing import Row

SHOWN = 20
_CONDITIONS = {
    "spot": "may be taken away",
    "flex-start": "waits for room, ends within 7 days",
    "reservation": "yours: gce.reservation",
}


def offers(
    context: typer.Context,
    hours: Annotated[
        float, typer.Option("--hours", metavar="HOURS", min=0.01, help="Show the cost of this many hours, too.")
    ] = 1.0,
    gpu: Annotated[str | None, typer.Option(help="List only machines with this GPU.", metavar="TYPE")] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Get every region's prices from Google's Cloud Billing Catalog first.")
    ] = False,
    nodes: Nodes = None,
) -> None:
    """List machines of Compute Engine that fit and what they cost, cheapest first.

    Prices are for all nodes with their disks and external addresses. `*` is what hvdcloud.yaml asks for, `~` the price
    of another region, `<` one that may be lower, `?` a price that is not known, or a quota that could not be asked for.

    \b
    Example:
      $ hvdcloud offers
      $ hvdcloud offers --hours 12 --gpu nvidia-l4
      $ hvdcloud offers --refresh --json
    """
    from hvdcloud import providers
    from hvdcloud.providers.pricing import rows

    invocation: Invocation = context.obj
    # Prices can be looked at without a project.
    with invocation.context({"nodes": nodes}, default_name="any") as experiment:
        if refresh:
            with experiment.console.waiting("offers", "reading Google's price catalog"):
                providers.refresh_prices(experiment.config, on_progress=experiment.console.say)
        invocation.result = result = providers.offers(experiment.config, hours=hours, gpu=gpu)
    console, lines = invocation.console, rows(result.offers)
    # What hvdcloud.yaml asks for is always shown.
    shown = [row for index, row in enumerate(lines) if index < SHOWN or row.offer.configured]
    total = [] if result.hours == 1 else [f"$/{result.hours:g} H"]
    cells = [_cells(row, total=bool(total)) for row in shown]
    if cells:
        headers = ["", "MACHINE", "GPUS", "HOW", "$/H", *total, "ZONES", "NOTES"]
        console.table(headers, cells, numbers=("$/H", *total))
        asked = "; * is what hvdcloud.yaml asks for" if any(row.offer.configured for row in shown) else ""
        console.answer(
            f"{counted(result.nodes, 'node')} with disks and external addresses, as of {result.prices_as_of}{asked}"
        )
    else:
        console.answer("nothing like it is in the table of machine types")
    for notice in result.notices:
        console.answer(notice)
    if len(lines) > len(shown):
        console.answer(f"{len(lines) - len(shown)} more: --json has all")


def _cells(row: Row, *, total: bool) -> list[str]:
    offer = row.offer
    notes = [_CONDITIONS[offer.provisioning]] if offer.provisioning in _CONDITIONS else []
    notes += ["quota: ?"] if offer.quota is None and row.zones else []
    notes += [f"{offer.gpu_type} ends {offer.ends}"] if offer.ends else []
    notes += [f"no quota: {offer.quota}"] if offer.quota else []
    zones = " ".join(zone.rpartition("-")[2] for zone in row.zones)
    more = f" +{counted(row.more_regions, 'region')}" if row.more_regions else ""
    estimate = ("<" if offer.at_most else "") + ("~" if offer.estimate else "")

    def price(dollars: float | None) -> str:
        return "?" if dollars is None else f"{estimate}{dollars:.2f}"

    return [
        "*" if offer.configured else "",
        offer.machine_type,
        f"{offer.gpu_count} {offer.gpu_type.removeprefix('nvidia-')}" if offer.gpu_type else "-",
        offer.provisioning,
        price(offer.dollars_per_hour),
        *([price(offer.dollars)] if total else []),
        f"{offer.region}-{zones}{more}" if row.zones else "no zone known",
        "; ".join(notes),
    ]
