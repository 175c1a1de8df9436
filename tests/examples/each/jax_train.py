"""Fits y = 3 x with JAX, with one process on every node, and saves on the first of them.

run.command, with run.launcher: each:

    python jax_train.py
"""

import os
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=int(os.environ["HVDCLOUD_NODES"]),
    process_id=int(os.environ["HVDCLOUD_NODE_RANK"]),
)
folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "."))
rank, ranks = jax.process_index(), jax.process_count()
x = np.random.default_rng(rank).random(128, dtype=np.float32)  # each process has data of its own
value_and_gradient = jax.jit(jax.value_and_grad(lambda weight: ((weight * x - 3 * x) ** 2).mean()))

weight = 0.0
for epoch in range(1, 6):
    for _ in range(8):
        both = multihost_utils.process_allgather(np.array(value_and_gradient(weight)))  # of every process
        loss, gradient = np.asarray(both).reshape(ranks, 2).mean(axis=0)
        weight -= 0.3 * float(gradient)
    if rank == 0:
        np.save(folder / "unfinished.npy", weight)
        (folder / "unfinished.npy").replace(folder / f"epoch-{epoch}.npy")
        print(f"epoch {epoch}/5: loss {loss:.4f}, {ranks} processes", flush=True)
jax.distributed.shutdown()
