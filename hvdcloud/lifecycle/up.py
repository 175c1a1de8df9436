"""`hvdcloud up`: all nodes or none."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hvdcloud.checks import require
from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.confirm_hosts import confirm_hosts
from hvdcloud.cluster.model import Cluster, ClusterSpec, Node, Plan
from hvdcloud.doctor.machine import build_checks, gpu_checks, project_checks
from hvdcloud.errors import (
    CapacityError,
    HvdcloudError,
    InterruptedByUserError,
    NodeError,
    TeardownError,
    UsageError,
)
from hvdcloud.interrupts import interrupted_once, uninterrupted
from hvdcloud.lifecycle.build import ensure_image, find_image
from hvdcloud.lifecycle.changed_settings import changes_since_up, settings_of
from hvdcloud.lifecycle.context import node_progress, owner_label
from hvdcloud.providers.base import NoRoomError
from hvdcloud.remote.keys import new_key_pair, write_key_pair
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.keys import KeyPair
    from hvdcloud.runs.retry import Within

MAKING_SECONDS = 120.0
"""From the creation of a cluster's firewall rules or network to that of its first node."""
PAUSE_SECONDS = 60.0
"""Between two tries of `up --wait`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    """A cluster that is ready for a run."""

    cluster: str
    id: str
    nodes: Sequence[Node]
    image: str
    dollars_per_hour: float | None
    """None: not known."""
    worst_case_dollars: float | None
    """None: nothing ends it, or not known."""
    created: bool
    """False if it existed already."""
    seconds: float


def make_spec(
    context: Context,
    *,
    image: str = "",
    public_key: str = "ssh-ed25519 (made by up)",
    within: Within | None = None,
    wait: float = 0.0,
) -> ClusterSpec:
    """What to ask the provider for."""
    config = context.config
    return ClusterSpec(
        name=config.name,
        id=secrets.token_hex(3),
        owner=owner_label(),
        nodes=config.nodes,
        image=image,
        bucket=context.bucket_url,
        authorized_key=public_key,
        created=datetime.now(timezone.utc),
        data=config.data,
        within=within,
        wait=wait,
    )


def plan_up(context: Context) -> Plan:
    """`up --dry-run`: the exact requests, with nothing changed; raises HvdcloudError: they could not be fulfilled."""
    check(context)
    image, there = find_image(context)
    if not there:
        where = "at the registry" if context.platform.needs_registry else "on this engine"
        context.console.say(f"image {image} is not {where}: `up` builds it first")
    return context.provider.plan(make_spec(context, image=image))


def check_project(context: Context, command: Sequence[str] = (), *, begins: bool = True, quiet: bool = False) -> None:
    """Ask whether a run could begin: the files that it gets, the script that it starts, and its secrets.

    Args:
        command, begins: as for `project_checks`.
        quiet: it is asked again when the run begins, and its warnings are shown then.

    Raises UsageError: one of them is missing.
    """
    warn = (lambda _: None) if quiet else context.console.warn
    require([*project_checks(context.config, command, begins=begins)], warn=warn)


def up(
    context: Context,
    *,
    confirmed: bool = False,
    wait: float = 0.0,
    command: str = "up",
    within: Within | None = None,
) -> UpResult:
    """Create the cluster; if anything fails, or on Ctrl-C, leave nothing. Its image is built if it does not exist.

    Args:
        confirmed: the user has agreed to what it costs, and to the hosts of provider ssh.
        wait: seconds for which it is tried again where no place has room, or a request may wait for room.
        command: what the user has typed, and types again after Ctrl-C; others than `up` check the project themselves.
        within: what earlier attempts of the run have left of its limits.

    Raises:
        UsageError: the name is taken, or what it costs was not agreed to.
        CapacityError, ImageError, NodeError: it could not be made.
        TeardownError: it could not be made, and something of it could not be deleted.
        InterruptedByUserError: Ctrl-C; all that was made is deleted. Or the answer to what it costs was no.
    """
    started = time.monotonic()
    consent = Consent(context.console, ask_above=context.config.limits.ask_above, given=confirmed)
    if command == "up":
        check_project(context, begins=False)
    with context.state.lock("up"):
        killed = context.state.journal.cut_off_create()
        existing = context.find() or context.late_arrival(killed)
        while existing is not None:
            context.refuse_others(existing)
            if not _clear_unfinished(context, existing):
                _refuse_other(context, existing)
                return _result(existing, existing, existing.nodes, started=started)
            existing = context.late_arrival(killed)

        confirm_hosts(context.config, console=context.console, given=confirmed)
        check(context)
        image, there = find_image(context)
        if not there:
            if context.platform.costs_money:
                # Before the image is built, which takes long.
                consent.confirm(context.provider.plan(make_spec(context, image=image)))
            check(context, image=True)
            image = ensure_image(context)
        login = new_key_pair(f"hvdcloud-{context.name}")
        spec = make_spec(context, image=image, public_key=login.public, within=within, wait=wait)
        plan = consent.confirm(context.provider.plan(spec))
        with interrupted_once():
            nodes, until = None, 0.0
            while nodes is None:
                try:
                    nodes = _create(context, plan, login, command=command)
                except NoRoomError as error:
                    if wait and not until:
                        ends = datetime.now() + timedelta(seconds=wait)
                        said = f"no zone has room; trying until {ends:%a %H:%M}, which costs nothing; Ctrl-C ends it"
                        context.console.say(said)
                    until = until or time.monotonic() + wait
                    plan = consent.confirm(_next_plan(context, plan, error, until=until, command=command))
    return _result(plan.spec, plan, nodes, started=started)


def _result(what: ClusterSpec | Cluster, price: Plan | Cluster, nodes: Sequence[Node], *, started: float) -> UpResult:
    return UpResult(
        cluster=what.name,
        id=what.id,
        nodes=nodes,
        image=what.image,
        dollars_per_hour=price.dollars_per_hour,
        worst_case_dollars=price.worst_case_dollars,
        created=isinstance(what, ClusterSpec),
        seconds=time.monotonic() - started,
    )


def _next_plan(context: Context, plan: Plan, error: NoRoomError, *, until: float, command: str) -> Plan:
    """The plan of the next try, after a pause, by the prices and quotas of that moment; raises `error` at `until`.

    Between two tries nothing of it exists. That Google does not answer, or that others hold the quota, ends no wait.
    """
    said = f"no room in {counted(error.zones, 'zone')}"
    while (left := until - time.monotonic()) > 0:
        pause = min(PAUSE_SECONDS, left)
        try:
            with context.console.steps() as steps:
                steps.update(context.name, f"{said}; next try in {pause:.0f} s")
                time.sleep(pause)
                steps.update(context.name, "trying again")
                spec = replace(plan.spec, id=secrets.token_hex(3), created=datetime.now(timezone.utc), wait=left)
                return context.provider.plan(spec)
        except KeyboardInterrupt:
            raise InterruptedByUserError(
                f"{command} of {context.name} was interrupted while waiting for room; nothing of it is left",
                hint=f"hvdcloud {command} --wait 6h starts again",
            ) from None
        except (CapacityError, NodeError) as passing:
            said = passing.message
    raise error


def check(context: Context, *, image: bool = False) -> None:
    """Raises HvdcloudError: the cluster cannot be made; with `image`, its image can be neither built nor pushed."""
    import docker  # noqa: F401 - its modules import each other, which fails where two threads import different ones first

    config, platform = context.config, context.platform
    if image:
        checks = [*build_checks(config, platform)]
    else:
        checks = [*platform.checks(make_spec(context)), *gpu_checks(config, platform)]
    with context.console.waiting(context.name, "checking that it can be created"):
        require(checks, warn=context.console.warn)


def _clear_unfinished(context: Context, existing: Cluster) -> bool:
    """Undo an `up` of this machine that was killed half-way, or delete what costs nothing and holds nothing.

    Returns whether the name is free now.

    Raises:
        UsageError: another user's `up` may be making it; until its first node exists, it looks like what is left.
    """
    if context.state.journal.unfinished_up(existing.id):
        context.console.say(f"an earlier `up` of {existing.name} was interrupted; deleting what it had made")
    elif existing.is_remnant:
        _refuse_while_made(context, existing)
        others = ", ".join(existing.other_objects)
        context.console.say(f"the nodes of an earlier {existing.name} are gone; deleting what is left of it: {others}")
    else:
        return False
    _roll_back(context, None)
    return True


def _refuse_while_made(context: Context, existing: Cluster) -> None:
    """Raises UsageError if an `up` elsewhere may still be making the cluster."""
    age = (datetime.now(timezone.utc) - existing.created).total_seconds()
    if age < MAKING_SECONDS and not context.state.journal.times(existing.id):
        raise UsageError(
            f"cluster {existing.name} was started {age:.0f} s ago by {existing.owner}, and may still be starting",
            hint="hvdcloud list shows it; try again in two minutes, or take another --name",
        )


def _refuse_other(context: Context, existing: Cluster) -> None:
    """Raises HvdcloudError if the cluster that is up is not the one that the configuration asks for."""
    nodes, name = context.config.nodes, existing.name
    hint = f"hvdcloud down --name {name} first, or take another --name"
    if not existing.whole:
        _refuse_while_made(context, existing)
        again = f"hvdcloud resize {existing.expected_nodes} --name {name}"
        raise UsageError(
            f"cluster {name} exists but is not whole: {len(existing.nodes)} of "
            f"{counted(existing.expected_nodes, 'node')} (made by {existing.owner})",
            hint=hint if existing.is_headless else f"{again} brings them back; else {hint}",
        )
    context.current_record(existing)
    if changes := changes_since_up(context, existing):
        raise changes
    if existing.expected_nodes != nodes:
        raise UsageError(
            f"cluster {name} is up with {counted(existing.expected_nodes, 'node')}, not {nodes}",
            hint=f"hvdcloud resize {nodes} --name {name} changes that; else {hint}",
        )
    image, _ = find_image(context)
    if existing.image != image:
        raise UsageError(f"cluster {name} runs image {existing.image}, not {image}", hint=hint)


def undone(command: str, name: str) -> InterruptedByUserError:
    """What is said after Ctrl-C, once everything that was made is deleted."""
    return InterruptedByUserError(
        f"{command} of {name} was interrupted; everything that it had made is deleted",
        hint=f"hvdcloud {command} starts again",
    )


def _create(context: Context, plan: Plan, login: KeyPair, *, command: str) -> Sequence[Node]:
    from hvdcloud.remote.join import join

    spec = plan.spec
    context.state.journal.record("up", cluster_id=spec.id, cluster=spec.name, owner=spec.owner)
    # A mesh key that an earlier cluster of this name left would open this one's nodes to each other as well.
    context.state.mesh_key_file.unlink(missing_ok=True)
    write_key_pair(context.state.key_file, login)
    try:
        # Inside: what is shown of nodes ends before they are deleted.
        with context.console.steps() as steps:
            on_progress = node_progress(steps)
            nodes = context.provider.create(plan, on_progress=on_progress)
            context.state.journal.record("created", cluster_id=plan.spec.id)
            deadline = time.monotonic() + context.provider.ready_seconds
            nodes = context.provider.wait_ready(nodes, deadline=deadline, on_progress=on_progress)
            steps.update("up", "making the nodes known to each other", if_slow=True)
            join(context.state, plan.spec, nodes, made=nodes)
            project = str(context.config.project_dir)
            context.state.update(lambda record: replace(record, project=project, settings=settings_of(context)))
            context.state.journal.record("up-done", cluster_id=plan.spec.id)
    except BaseException as error:
        with uninterrupted():
            # `create` deletes what it made; here it is looked for once more, by label. Another `up` may have taken the
            # name meanwhile, and its cluster stays.
            left = _what_is_left(context, plan, error)
            if left is not None and left.id == plan.spec.id:
                _roll_back(context, error)
            else:
                context.state.forget()
            # Only spares a later `down` from looking for what may still appear.
            with contextlib.suppress(HvdcloudError):
                context.state.journal.record("up-undone", cluster_id=plan.spec.id)
        if isinstance(error, KeyboardInterrupt):
            raise undone(command, context.name) from None
        raise
    return nodes


def _what_is_left(context: Context, plan: Plan, cause: BaseException) -> Cluster | None:
    """The cluster of this name after a failed `create`; raises TeardownError: the provider does not say."""
    try:
        return context.provider.cluster(plan.spec.name)
    except HvdcloudError as error:
        # In another zone than the plan's first it may be later, but never later than that.
        hours = context.config.limits.max_run_duration / 3600
        guard = f"; what is left deletes itself {hours:g} h after its start" if plan.seconds else ""
        raise TeardownError(
            f"{plan.spec.name} did not come up ({_why(cause)}), and it is not proven that nothing is left: "
            f"{error.message}",
            hint=f"hvdcloud down --name {plan.spec.name} as soon as that is fixed{guard}",
            details="\n".join(filter(None, [getattr(cause, "details", ""), error.details])),
        ) from cause


def _why(cause: BaseException | None) -> str:
    return cause.message if isinstance(cause, HvdcloudError) else str(cause or "interrupted")


def _roll_back(context: Context, cause: BaseException | None) -> None:
    """Delete every object with the cluster's labels; raises TeardownError: something is left."""
    with uninterrupted():
        context.console.say(f"deleting what was made of {context.name}; please wait")
        with context.console.steps() as steps:
            steps.update(context.name, "deleting", if_slow=True)
            leftovers = context.provider.destroy(context.name, on_progress=node_progress(steps))
    context.state.forget()
    if leftovers:
        why = f"{context.name} did not come up: {_why(cause)}" if cause is not None else ""
        raise context.not_deleted(leftovers, again="hvdcloud down", why=why) from cause
