"""The job of `python -m tests.bench.slow_ranks`: a model of 200 tensors trains; rank 0 says how long a step takes.

layers.py [--slower SHARE] [--seconds N]: rank 1 computes that part of the layers twice; train for about that long.
"""

import argparse
import statistics
import sys
import time

import horovod.torch as hvd
import torch

LAYERS, WIDTH, BATCH = 100, 128, 64
WARM_UP, STEPS = 10, 100


class Layer(torch.nn.Module):
    def __init__(self, times):
        super().__init__()
        self.linear, self.times = torch.nn.Linear(WIDTH, WIDTH), times

    def forward(self, batch):
        return sum(self.linear(batch) for _ in range(self.times)) / self.times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slower", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    twice = options.slower * 4 if hvd.rank() == 1 else 0
    model = torch.nn.Sequential(*(Layer(2 if number % 4 < twice else 1) for number in range(LAYERS)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters()
    )
    batch, took, steps = torch.ones(BATCH, WIDTH), [], STEPS
    while len(took) < WARM_UP + steps:
        if len(took) == WARM_UP:
            steps = hvd.broadcast_object(max(STEPS, int(options.seconds / statistics.median(took))))
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
