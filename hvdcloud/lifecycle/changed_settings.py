"""What the configuration asks for that a cluster which is up was made without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from hvdcloud.image.plan.requirements import digest_of
from hvdcloud.units import seconds

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.lifecycle.context import Context

_KEYS = {
    "image": {"base", "dockerfile", "framework", "device", "version", "requirements"},
    "checkpoints": {"bucket"},
}
"""What counts only when a cluster is made, whatever its provider; without `nodes`."""
_CONTENT = "content of "


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has changed since `up`, and what applies it."""

    summary: str
    """`cluster digits was made before this changed: nodes 2 → 4, requirements.txt`."""
    command: str
    required: bool = False
    """No run can begin before that: a folder with its data is not mounted."""


def settings_of(context: Context) -> Mapping[str, str]:
    """What a cluster is made with now, by key, as text; without what flags of this command gave."""
    config = context.config
    tree = config.model_dump(mode="json")
    for key in ("idle", "max_run_duration"):
        tree["limits"][key] = tree["limits"][key] and seconds(tree["limits"][key])
    keys = {**_KEYS, **context.platform.fixed_keys()}
    found = {f"{section}.{key}": _text(tree[section][key]) for section in keys for key in sorted(keys[section])}
    found["nodes"] = str(config.nodes)
    folder, image = config.project_dir, config.image
    found[f"{_CONTENT}image.requirements"] = digest_of(folder, image.requirements, includes=True)
    found[f"{_CONTENT}image.dockerfile"] = digest_of(folder, image.dockerfile, includes=False)
    return {key: value for key, value in found.items() if key not in context.flags}


def changes_since_up(context: Context, cluster: Cluster) -> Changes | None:
    """What differs from what this machine made the cluster with; None: nothing, or that is not known."""
    record = context.state.record_of(cluster.id)
    before = record.settings if record is not None else {}
    now = settings_of(context)
    texts, resize = [], False
    for key in (key for key in now if key in before and before[key] != now[key]):
        if key.startswith(_CONTENT):
            texts.append(getattr(context.config.image, key.rpartition(".")[2]) or key.removeprefix(_CONTENT))
        elif key != "nodes":
            texts.append(f"{key} {before[key]} → {now[key]}")
        elif now[key] != str(cluster.expected_nodes):
            texts.append(f"nodes {cluster.expected_nodes} → {now[key]}")
            resize = True
    mounts = _new_mounts(context, record) if record is not None else []
    texts += mounts
    if not texts:
        return None
    name = f" --name {cluster.name}"
    alone = resize and len(texts) == 1
    command = f"hvdcloud resize {now['nodes']}{name}" if alone else f"hvdcloud down{name} && hvdcloud up{name}"
    return Changes(
        summary=f"cluster {cluster.name} was made before this changed: {', '.join(texts)}",
        command=command,
        required=bool(mounts),
    )


def _new_mounts(context: Context, record: ClusterRecord) -> list[str]:
    """The folders with data that the nodes do not have: they are mounted when a node is made."""
    folders = {name: each for name, each in context.config.data.items() if each.folder is not None}
    return [
        f"data.{name} {record.data.get(name, 'none').partition(' ')[2] or 'none'} → {each.source}"
        for name, each in folders.items()
        if record.data.get(name) != each.text
    ]


def _text(value: object) -> str:
    """A value as it may stand in hvdcloud.yaml."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()
