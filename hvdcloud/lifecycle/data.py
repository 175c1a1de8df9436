"""The data sets of a run: what the nodes are asked to fetch, and what is shown while they do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.node.data.sets import MOUNTED, DataRequest, DataSet
from hvdcloud.runs.data import progress, summary
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import RunState
from hvdcloud.steps import NOTICEABLE_SECONDS

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.config.data import DataConfig
    from hvdcloud.lifecycle.context import Context

_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 20.0
_ERRORS: Mapping[int | None, type[HvdcloudError]] = {
    int(each.code): each for each in (UsageError, CredentialsError, CapacityError, NodeError)
}


def data_request(data: Mapping[str, DataConfig], *, nodes: int, endpoint: str | None) -> DataRequest | None:
    """What the first node with ranks is asked to have; None: there are no data sets.

    Args:
        nodes: how many have ranks, and so get a share of what is shared out.
        endpoint: another Cloud Storage endpoint, as the nodes reach it.
    """
    if not data:
        return None
    sets = (
        DataSet(name=name, source=f"file://{MOUNTED}/{name}", mounted=True)
        if each.folder is not None
        else DataSet(name=name, source=each.source, per_node=each.per_node)
        for name, each in data.items()
    )
    return DataRequest(sets=tuple(sets), index=0, count=max(1, nodes), endpoint=endpoint)


def remembered(record: ClusterRecord, data: Mapping[str, DataConfig]) -> Mapping[str, str]:
    """What a cluster's record says of its data sets from a run with these on."""
    mounted = {name: text for name, text in record.data.items() if "file://" in text}
    return {**{name: each.text for name, each in data.items() if each.folder is None}, **mounted}


def show_data(context: Context, cluster: Cluster, run_id: str) -> None:
    """Show how the nodes' data arrive, until the run starts its ranks or ends. The head waits, whether or not anything
    follows."""
    head = context.fleet(cluster).head
    with context.console.steps() as steps:
        while True:
            try:
                answer = head.call(f"state {run_id}", timeout=_ANSWER_SECONDS)
            except NodeError:
                # `follow` has patience with a head that does not answer.
                return
            state = next(iter(RunState.all_from_json(answer.get("runs"))), RunState())
            for each in state.data:
                if each.ready:
                    steps.leave(each.node)
                    continue
                total = each.total_bytes if each.phase == "fetching" and each.total_bytes else None
                done = each.bytes if total else None
                text = "fetching data" if total else f"data: {progress(each)}"
                steps.update(each.node, text, done=done, total=total, in_bytes=True, after=NOTICEABLE_SECONDS)
            if not state.waits_for_data:
                break
            time.sleep(_LOOK_SECONDS)
    if said := summary(state):
        context.console.say(f"data: {said}")


def failure(run_id: str, failed: NodeData) -> HvdcloudError:
    """The error of a run whose data a node cannot have, of the kind that the node says."""
    kind = _ERRORS.get(failed.exit_code, NodeError)
    message = f"run {run_id} did not start: node {failed.node}: {failed.error}"
    return kind(message, hint=failed.hint or f"hvdcloud logs {run_id} shows its output")
