"""Images per second of one process, as JSON in the last line: throughput.py DEVICE [horovod]

The same training with and without Horovod. With it, it runs under `horovodrun -np 1`, and every gradient is reduced,
though there is no other rank to reduce it with: what is measured is what Horovod itself costs.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn

BATCH = {"cuda": 64, "cpu": 2}
SIDE = {"cuda": 224, "cpu": 64}
WARM_UP, STEPS = {"cuda": 20, "cpu": 1}, {"cuda": 100, "cpu": 2}


def network() -> nn.Module:
    """A plain convolutional network of ResNet-50's order of size: 17 million weights, in 28 tensors."""
    widths = [3, 64, 128, 256, 512, 512, 1024]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)


def main(device: str, horovod: str = "") -> None:
    facts: dict[str, Any] = {"device": device, "horovod": bool(horovod), "torch": torch.__version__}
    model = network().to(device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if horovod:
        # Otherwise the optimizer of a single rank reduces nothing (horovod/torch/optimizer.py).
        os.environ["HOROVOD_ELASTIC"] = "1"
        import horovod.torch as hvd

        hvd.init()
        assert hvd.size() == 1
        if device == "cuda":
            assert hvd.nccl_built(), "Horovod was built without NCCL"
        tensor = torch.arange(1000, dtype=torch.float32, device=device)
        total = hvd.allreduce(tensor, op=hvd.Sum, name="check")
        assert total.device == tensor.device
        assert torch.equal(total, tensor)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    images = torch.randn(BATCH[device], 3, SIDE[device], SIDE[device], device=device)
    labels = torch.randint(0, 1000, (BATCH[device],), device=device)
    loss_of = nn.CrossEntropyLoss()

    def steps(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    steps(WARM_UP[device])
    facts["images_per_second"] = round(STEPS[device] * BATCH[device] / steps(STEPS[device]), 1)
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
