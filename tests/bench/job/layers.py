"""The job of `python -m tests.bench.slow_ranks`: a model of 200 tensors trains; rank 0 says how long a step takes."""

import statistics
import sys
import time

import horovod.torch as hvd
import torch

LAYERS, WIDTH, BATCH = 100, 128, 64
WARM_UP, STEPS = 10, 100


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters()
    )
    batch, took = torch.ones(BATCH, WIDTH), []
    for _ in range(WARM_UP + STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
    # What a step needs when nothing else takes the machine's cores; the waits are in every step.
    if hvd.rank() == 0:
        step = took[WARM_UP:]
        sys.stdout.write(f"bench-step {statistics.median(step):.6f} {min(step):.6f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
