"""`python -m tests.bench`: measures hvdcloud beside the job alone, a hand-written floor and TorchX (see README.md)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.bench import contestants, report, scaling, startup
from tests.bench.contestants import Contestant
from tests.bench.measure import Sample
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.workplace import Workplace

PARTS = ("bare", "floor", "torchx", "steps", "launch", "startup", "scaling")
FEWEST_RUNS = 5
"""What has fewer rounds, or only some of the parts, does not replace the results that are committed."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 5)")
    parser.add_argument("--image", help="of the floor and TorchX (default: what `hvdcloud build` makes)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--results", type=Path, help="folder for results.json and results.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    return options


def whole_job(everybody: Sequence[Contestant], *, runs: int) -> dict[str, tuple[str, Sequence[Sample]]]:
    """Everybody once per round, so that whatever the machine does hits all alike; the first round only warms up."""
    samples: dict[str, list[Sample]] = {each.key: [] for each in everybody}
    for turn in range(runs + 1):
        # Each round begins with another one: none always runs after the same neighbour.
        order = [*everybody[turn % len(everybody) :], *everybody[: turn % len(everybody)]]
        for each in order:
            sample = each.measure()
            say(f"{'warm-up' if turn == 0 else f'round {turn}/{runs}'}: {each.title}: {sample.seconds:.2f} s")
            if turn:
                samples[each.key].append(sample)
    return {each.key: (each.title, samples[each.key]) for each in everybody}


def template(place: Workplace, *, runs: int) -> dict[int, list[dict[str, float]]]:
    """The scaling of the template."""
    cores = sorted(os.sched_getaffinity(0))[: max(scaling.NODES)]
    if len(cores) < max(scaling.NODES):
        say(f"scaling: left out, it needs {max(scaling.NODES)} cores")
        return {}
    project = place.template_project(cores=cores)
    say("scaling: building the template's image")
    place.build(project)
    found: dict[int, list[dict[str, float]]] = {nodes: [] for nodes in scaling.NODES}
    for turn in range(runs):
        for nodes in scaling.NODES:
            reported = scaling.measure(place, project, nodes=nodes)
            found[nodes].append(reported)
            say(f"round {turn + 1}/{runs}: template on {nodes} node(s): {reported['images_per_second']:.0f} images/s")
    return found


def measure(options: argparse.Namespace) -> dict[str, object]:
    """All that was asked for."""
    wanted = set(options.only)
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"the machine is busy (load {load:.1f}): expect noise")
    with Workplace() as place:
        project = place.allreduce_project()
        say("building the image, if it is not there")
        built = place.build(project)
        image = options.image or built
        if image != built:
            say(f"the floor and TorchX run {image}, hvdcloud runs {built}: not the same image")
        everybody: list[Contestant] = []
        if "bare" in wanted:
            everybody.append(contestants.bare(place, image))
        if "floor" in wanted:
            everybody.append(contestants.floor(place, image))
        if "torchx" in wanted:
            bare = place.without_entrypoint(image)
            everybody += [contestants.torchx(place, bare, how=how) for how in ("cli", "api")]
        if "steps" in wanted:
            everybody.append(contestants.steps(place, project))
        if "launch" in wanted:
            everybody.append(contestants.launch(place, project))
        return report.document(
            image=image,
            load=load,
            jobs=whole_job(everybody, runs=options.runs) if everybody else {},
            startup=startup.measure() if "startup" in wanted else {},
            scaling=template(place, runs=options.runs) if "scaling" in wanted else {},
        )


def main() -> int:
    options = arguments()
    # A `kill` is handled as Ctrl-C is: everything is removed.
    signal.signal(signal.SIGTERM, _interrupt)
    with ends_in_words():
        found = measure(options)
    complete = options.runs >= FEWEST_RUNS and set(options.only) == set(PARTS)
    publish("results", found, report.markdown(found), folder=options.results, complete=complete)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
