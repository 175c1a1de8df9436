"""Trains a small convolutional network on images in shards, as many processes as Horovod started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here
    python train.py                                           # one process, no launcher

make_data.py wrote the shards; hvdcloud puts them on every node, in $HVDCLOUD_DATA. Every process ("rank") holds the
whole model and goes through its own share of the images in each epoch: all images are seen once, and all ranks take
the same number of steps, however many ranks and shards there are. Horovod averages the gradients, so that the weights
stay the same everywhere. Only rank 0 prints and writes checkpoints.

A run that finds checkpoints in its folder continues after the newest one. Before hvdcloud starts a run it puts the
files of the cluster's previous run into that folder, so a second `hvdcloud run` continues where the first one ended.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

SIZE = 16  # pixels along a side
RECORD = 1 + SIZE * SIZE  # bytes: the label, then the pixels


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on images in shards with Horovod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=5, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and per rank, at most")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=1, help="epochs until that product is reached")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    parser.add_argument("--readers", type=int, default=4, help="threads of each rank that read and decode shards")
    parser.add_argument("--seed", type=int, default=1, help="first weights, order of the images")
    return parser.parse_args()


def build_model() -> nn.Module:
    """A network for 16 x 16 pixels.

    Without batch normalisation, whose running averages each rank would keep to itself: Horovod sees gradients only.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@dataclass(frozen=True)
class Part:
    """Some of a shard's images: all of them, except where two ranks share a shard."""

    shard: Path
    first: int
    last: int  # not included


def shards(name: str) -> list[Path]:
    """The files of a data set, in an order that is the same on every node."""
    data = Path(os.environ.get("HVDCLOUD_DATA", Path(__file__).parent / "data"))
    found = sorted((data / name).rglob("*.bin"))
    if not found:
        raise SystemExit(f"{data / name} has no shards: python3 make_data.py writes some")
    return found


def images_in(shard: Path) -> int:
    return shard.stat().st_size // RECORD


def share(files: list[Path], place: int, places: int) -> list[Part]:
    """What is left of these files for one rank of several: each gets as many images as the others, or one more."""
    total = sum(map(images_in, files))
    start, stop = total * place // places, total * (place + 1) // places
    parts, begin = [], 0
    for shard in files:
        end = begin + images_in(shard)
        if begin < stop and end > start:
            parts.append(Part(shard, max(start, begin) - begin, min(stop, end) - begin))
        begin = end
    return parts


class Loader:
    """Goes through this rank's share of a data set; threads read and decode what comes next meanwhile.

    Args:
        batch_size: the most images in a batch.
        seed: None: the images always come in the same order.
    """

    def __init__(self, name: str, *, batch_size: int, readers: int, seed: int | None) -> None:
        self.files = shards(name)
        self.seed = seed
        self.pool = ThreadPoolExecutor(readers)
        self.ahead = 2 * readers
        # With `per_node: shard` a node has its own files only, and its ranks share those.
        same_everywhere = len(set(hvd.allgather_object(tuple(file.name for file in self.files)))) == 1
        self.place = (hvd.rank(), hvd.size()) if same_everywhere else (hvd.local_rank(), hvd.local_size())
        images = sum(part.last - part.first for part in share(self.files, *self.place))
        counts = hvd.allgather_object(images)
        self.images = sum(counts)
        # The same on all ranks: one that took a step more than the others would wait for them without end.
        self.steps = math.ceil(max(counts) / batch_size)

    def epoch(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's images and labels, each once, in exactly `steps` batches."""
        files = list(self.files)
        if self.seed is not None:
            Random(f"{self.seed} {epoch}").shuffle(files)  # alike on all ranks, which share out the same list
        parts = share(files, *self.place)
        count = sum(part.last - part.first for part in parts)
        pieces = self.decoded(parts, epoch)
        images, labels = torch.empty(0, 1, SIZE, SIZE), torch.empty(0, dtype=torch.int64)
        for step in range(self.steps):
            wanted = count * (step + 1) // self.steps - count * step // self.steps
            while len(labels) < wanted:
                more_images, more_labels = next(pieces)
                images, labels = torch.cat([images, more_images]), torch.cat([labels, more_labels])
            yield images[:wanted], labels[:wanted]
            images, labels = images[wanted:], labels[wanted:]

    def decoded(self, parts: list[Part], epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parts in order, while those that follow are read already."""
        waiting: deque[Future] = deque()
        for part in parts:
            waiting.append(self.pool.submit(self.decode, part, epoch))
            if len(waiting) > self.ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def decode(self, part: Part, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        records = torch.frombuffer(bytearray(part.shard.read_bytes()), dtype=torch.uint8).reshape(-1, RECORD)
        if self.seed is not None:
            # Alike on two ranks that share this shard, so that each image is in one of the two parts.
            order = list(range(len(records)))
            Random(f"{self.seed} {epoch} {part.shard.name}").shuffle(order)
            records = records[order]
        records = records[part.first : part.last]
        images = (records[:, 1:].float() - 60) / 64  # nearly mean 0 and deviation 1
        return images.reshape(-1, 1, SIZE, SIZE), records[:, 0].long()


def learning_rate(epoch: float, options: argparse.Namespace) -> float:
    """The rate at a point of the training, such as 2.5: in the middle of the third epoch.

    One step averages over size() batches, so it may be size() times as long; but not from the start, when the weights
    still change quickly (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). So it climbs from the rate of one rank
    to the scaled one, then falls to zero along a cosine.
    """
    if epoch < options.warmup_epochs:
        return options.lr * (1 + (hvd.size() - 1) * epoch / options.warmup_epochs)
    done = (epoch - options.warmup_epochs) / max(options.epochs - options.warmup_epochs, 1e-9)
    return options.lr * hvd.size() * (1 + math.cos(math.pi * min(done, 1))) / 2


@dataclass
class Metrics:
    """Sums over the images this rank has seen, and from `average` the mean over those of all ranks."""

    loss: float = 0.0
    correct: float = 0.0
    images: float = 0.0

    def add(self, output: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        self.loss += loss.item() * len(labels)
        self.correct += (output.argmax(dim=1) == labels).sum().item()
        self.images += len(labels)

    def average(self, name: str) -> tuple[float, float]:
        """Loss and accuracy over all ranks. Sums are added up, since ranks may hold different numbers of images."""
        sums = torch.tensor([self.loss, self.correct, self.images], dtype=torch.float64)
        loss, correct, images = hvd.allreduce(sums, name=name, op=hvd.Sum).tolist()
        return loss / images, correct / images


def train_epoch(
    epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader, options: argparse.Namespace
) -> tuple[float, float]:
    """One pass over this rank's share. Returns the loss over all ranks and the images all of them took per second."""
    device = next(model.parameters()).device
    metrics = Metrics()
    model.train()
    started = time.perf_counter()
    for step, (images, labels) in enumerate(loader.epoch(epoch)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch + step / loader.steps, options)
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(images)
        # The mean, and 0 for a batch without images, of which a rank with few has some.
        loss = functional.cross_entropy(output, labels, reduction="sum") / max(len(labels), 1)
        loss.backward()
        optimizer.step()  # waits for the gradients averaged over all ranks
        metrics.add(output, labels, loss)
    loss_of_all, _ = metrics.average("train")  # waits for the slowest rank
    return loss_of_all, loader.images / (time.perf_counter() - started)


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    device = next(model.parameters()).device
    metrics = Metrics()
    model.eval()
    for images, labels in loader.epoch(0):
        images, labels = images.to(device), labels.to(device)
        output = model(images)
        loss = functional.cross_entropy(output, labels, reduction="sum") / max(len(labels), 1)
        metrics.add(output, labels, loss)
    _, accuracy = metrics.average("test")
    return accuracy


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest epoch. Anything else in the folder is left alone."""
    found = [path for path in folder.glob("checkpoint-*.pt") if path.stem.removeprefix("checkpoint-").isdecimal()]
    return max(found, key=lambda path: int(path.stem.removeprefix("checkpoint-")), default=None)


def save_checkpoint(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes what a later run needs to continue after `epoch`.

    Under another name first, then renamed in one move: even if this process dies meanwhile, no reader ever sees half a
    checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{epoch:03d}.pt"
    unfinished = path.with_suffix(".pt.tmp")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(path)


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Brings every rank to the state of rank 0, which first loads the newest checkpoint if there is one.

    The optimizer has to be Horovod's already: wrapping it afterwards would throw its momentum away.

    Returns:
        How many epochs are done.
    """
    done = 0
    path = newest_checkpoint(folder) if hvd.rank() == 0 else None
    if path is not None:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["epoch"]
        print(f"resumed from {path.name}: {done} epochs are done", flush=True)
    # In this order: to make room for the state, Horovod takes a step with zero gradients where the optimizer is still
    # new, and with weight decay even such a step moves the weights.
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.broadcast_object(done, root_rank=0, name="epochs_done")


class Charts:
    """Curves for TensorBoard and for Weights & Biases, where their packages are installed (see requirements.txt).

    Opened by the first point that is added, which only rank 0 does.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options

    @cached_property
    def tensorboard(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(self.folder / "tensorboard")

    @cached_property
    def wandb(self) -> Any:
        try:
            import wandb
        except ImportError:
            return None
        if not os.environ.get("WANDB_API_KEY"):
            return None
        run = {"project": "digits", "id": os.environ.get("HVDCLOUD_RUN"), "config": vars(self.options)}
        try:
            with suppress(HTTPError):  # any answer is one; without, wandb itself would wait for minutes
                urlopen(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"), timeout=5).close()
            return wandb.init(**run, resume="allow", settings=wandb.Settings(init_timeout=30))
        except (wandb.Error, OSError) as error:
            print(f"Weights & Biases: {error}; `wandb sync` can send this run later", flush=True)
            return wandb.init(**run, mode="offline", dir=self.folder)

    def add(self, epoch: int, **values: float) -> None:
        if self.tensorboard:
            for name, value in values.items():
                self.tensorboard.add_scalar(name, value, epoch)
            self.tensorboard.flush()
        if self.wandb:
            self.wandb.log(values, step=epoch)

    def close(self) -> None:
        if self.tensorboard:
            self.tensorboard.close()
        if self.wandb:
            self.wandb.finish()


def main() -> None:
    options = parse_arguments()
    hvd.init()
    torch.manual_seed(options.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())  # one GPU per process
        torch.cuda.set_device(device)

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))  # else all ranks would use all cores
    readers = options.readers
    train_loader = Loader("train", batch_size=options.batch_size, readers=readers, seed=options.seed)
    test_loader = Loader("test", batch_size=256, readers=readers, seed=None)

    model = build_model().to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum),
        named_parameters=model.named_parameters(),
    )
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    first = resume(folder, model, optimizer)

    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if hvd.rank() == 0:
        counts = f"training on {train_loader.images} images, testing on {test_loader.images}"
        print(f"{counts}, {ranks}, {device.type}", flush=True)
    charts = Charts(folder, options)
    speeds = []
    accuracy = None
    for epoch in range(first, options.epochs):
        loss, speed = train_epoch(epoch, model, optimizer, train_loader, options)
        accuracy = evaluate(model, test_loader)
        speeds.append(speed)
        if hvd.rank() == 0:
            save_checkpoint(folder, epoch + 1, model, optimizer)
            print(
                f"epoch {epoch + 1:2d}/{options.epochs}: "
                f"loss {loss:.4f}, accuracy {accuracy:.3f}, {speed:.0f} images/s",
                flush=True,
            )
            charts.add(epoch + 1, loss=loss, accuracy=accuracy, images_per_second=speed)
    if accuracy is None:
        accuracy = evaluate(model, test_loader)
    if hvd.rank() == 0:
        pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)
        charts.close()


if __name__ == "__main__":
    main()
