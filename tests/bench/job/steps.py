"""The job of `python -m tests.bench.step_cost`: it trains for some steps; rank 0 says how many it did a second."""

import sys
import time

import horovod.torch as hvd
import torch

LAYERS, WIDTH, BATCH, WARM_UP = 10, 512, 64, 20


def main(steps: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters()
    )
    batch, began = torch.ones(BATCH, WIDTH), 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if hvd.rank() == 0:
        sys.stdout.write(f"bench-steps {steps / (time.perf_counter() - began):.4f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
