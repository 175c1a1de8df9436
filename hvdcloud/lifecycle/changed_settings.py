"""What the configuration asks for that a cluster which is up was made without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvdcloud.cluster.record import MOUNTS
from hvdcloud.config.file import text_of
from hvdcloud.config.gce import GceConfig
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.requirements import digest_of

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context

_IMAGE = ("base", "dockerfile", "framework", "device", "version", "requirements")
# The launcher decides what is in the image.
KEYS = ("nodes", *(f"image.{key}" for key in _IMAGE), "run.launcher", "checkpoints.bucket", "limits.idle")
"""What counts only when a cluster is made, whatever its provider."""
KEYS_OF = {
    "local": ("local.gpus",),
    "ssh": ("limits.max_run_duration",),
    "gce": ("limits.max_run_duration", "limits.max_cost", *(f"gce.{key}" for key in GceConfig.model_fields)),
}
"""By provider, what else does."""
_CONTENT = "content of "


def settings_of(context: Context) -> Mapping[str, str]:
    """What a cluster is made with now, by key, as text; without what flags of this command gave."""
    config = context.config
    found = {key: text_of(config, key) for key in (*KEYS, *KEYS_OF[config.provider])}
    folder, image = config.project_dir, config.image
    found[f"{_CONTENT}image.requirements"] = digest_of(folder, image.requirements, includes=True)
    found[f"{_CONTENT}image.dockerfile"] = digest_of(folder, image.dockerfile, includes=False)
    # Folders are mounted when a node is made.
    found |= {f"{MOUNTS}{name}": each.source for name, each in config.data.items() if each.folder is not None}
    return {key: value for key, value in found.items() if key not in context.flags}


def changes_since_up(context: Context, cluster: Cluster) -> UsageError | None:
    """What differs from what this machine made the cluster with, and what applies it; None: nothing, or that is not
    known."""
    record = context.state.record_of(cluster.id)
    before, now = record.settings if record is not None else {}, settings_of(context)
    texts = []
    for key, value in now.items() if before else ():
        was = before.get(key)
        if was == value or (was is None and not key.startswith(MOUNTS)):
            continue
        if key.startswith(_CONTENT):
            texts.append(getattr(context.config.image, key.rpartition(".")[2]) or key.removeprefix(_CONTENT))
        elif key != "nodes":
            texts.append(f"{key} {was or 'none'} → {value}")
        elif value != str(cluster.expected_nodes):
            texts.append(f"nodes {cluster.expected_nodes} → {value}")
    if not texts:
        return None
    name = f" --name {cluster.name}"
    again = f"hvdcloud down{name} && hvdcloud up{name}"
    command = f"hvdcloud resize {now['nodes']}{name}" if texts[0].startswith("nodes ") and len(texts) == 1 else again
    message = f"cluster {cluster.name} was made before this changed: {', '.join(texts)}"
    return UsageError(message, hint=f"{command} applies it")
