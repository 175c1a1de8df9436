"""Trains a small convolutional network on scikit-learn's digits, on as many processes as Horovod started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here
    python train.py                                           # one process, no launcher

Every process ("rank") holds the whole model and works on its own share of each epoch. Horovod averages the gradients,
so that the weights stay the same everywhere. Only rank 0 prints and writes checkpoints.

A run that finds checkpoints in its folder continues after the newest one. Before hvdcloud starts a run it puts the
files of the cluster's previous run into that folder, so a second `hvdcloud run` continues where the first one ended.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on handwritten digits with Horovod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--optimizer", choices=["sgd", "lars"], default="sgd", help="lars: for large batches")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=3, help="epochs until that product is reached")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    parser.add_argument("--trust", type=float, default=0.3, help="trust coefficient of LARS")
    parser.add_argument("--seed", type=int, default=1, help="first weights, order of the images, dropout")
    return parser.parse_args()


def build_model() -> nn.Module:
    """A network for 8 x 8 pixels.

    Without batch normalisation, whose running averages each rank would keep to itself: Horovod sees gradients only.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * 2 * 2, 10),
    )


def build_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """SGD; or LARS, whose step in each layer is measured by the layer's weights, which keeps large batches stable.

    You, Gitman, Ginsburg 2017, https://arxiv.org/abs/1708.03888
    """
    if options.optimizer == "lars":
        from pytorch_optimizer import LARS  # here, because it takes a second

        return LARS(model.parameters(), lr=options.lr, momentum=options.momentum, trust_coefficient=options.trust)
    return torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits, which come with scikit-learn: four fifths to train on, one fifth to test.

    The split must not depend on the rank, or one rank would train on what another one tests.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    images = (images - 4.9) / 6.0  # pixels are 0..16, with this mean and standard deviation
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.2, stratify=digits.target, random_state=0)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


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
    epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, options: argparse.Namespace
) -> tuple[float, float]:
    """One pass over this rank's share. Returns the loss over all ranks and the images all of them took per second."""
    device = next(model.parameters()).device
    metrics = Metrics()
    model.train()
    loader.sampler.set_epoch(epoch)  # without it every epoch would come in the same order
    # Another dropout on each rank; and one that depends on the epoch alone, so that a run that was interrupted and
    # resumed ends with the same weights as one that was not.
    torch.manual_seed((options.seed * 1_000 + epoch) * 1_000 + hvd.rank())
    started = time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch + step / len(loader), options)
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(images)
        loss = functional.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()  # waits for the gradients averaged over all ranks
        metrics.add(output, labels, loss)
    seconds = time.perf_counter() - started
    loss_of_all, _ = metrics.average("train")
    return loss_of_all, len(loader.sampler) * hvd.size() / seconds


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    device = next(model.parameters()).device
    metrics = Metrics()
    model.eval()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        output = model(images)
        metrics.add(output, labels, functional.cross_entropy(output, labels))
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

    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=options.seed)
    train_loader = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)
    # The sampler repeats a few images so that all ranks have equally many, which keeps their steps in pace. In the test
    # that would count some images twice: there, each rank takes every size()-th image.
    test_loader = DataLoader(Subset(test_set, range(hvd.rank(), len(test_set), hvd.size())), batch_size=256)

    model = build_model().to(device)
    optimizer = hvd.DistributedOptimizer(build_optimizer(model, options), named_parameters=model.named_parameters())
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    first = resume(folder, model, optimizer)

    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if hvd.rank() == 0:
        print(f"training on {len(train_set)} images, testing on {len(test_set)}, {ranks}, {device.type}", flush=True)
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
