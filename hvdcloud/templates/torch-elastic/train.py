"""Trains a small convolutional network on scikit-learn's digits, on as many processes as there are at the moment.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here
    python train.py                                           # one process, no launcher

Every process ("rank") holds the whole model and works on its own share of each step. Horovod adds up the gradients, so
that the weights stay the same everywhere. Only rank 0 prints and writes checkpoints.

Processes may come and go. Every few steps all ranks commit: they keep a copy of their state in memory. When a rank is
lost, the others go back to the last commit and continue without it. New ranks get the state of rank 0 at the next
commit. Both times `train` starts again from its top; an image that has been counted is not taken again in that
epoch. Ranks are numbered again, so any process may become rank 0.

A run that finds checkpoints in its folder continues after the newest one. Before hvdcloud starts a run it puts the
files of the cluster's previous run into that folder, so a second `hvdcloud run` continues where the first one ended.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on handwritten digits with Horovod, on ranks that come and go.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--commit-every", type=int, default=5, help="steps between commits: what a lost rank costs")
    parser.add_argument("--optimizer", choices=["sgd", "lars"], default="sgd", help="lars: for large batches")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=3, help="epochs until that product is reached")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    parser.add_argument("--trust", type=float, default=0.3, help="trust coefficient of LARS")
    parser.add_argument("--seed", type=int, default=1, help="first weights, order of the images, dropout")
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait after each step, to watch it longer")
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

        local = LARS(model.parameters(), lr=options.lr, momentum=options.momentum, trust_coefficient=options.trust)
    else:
        local = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    # The sum, not the average: train_epoch divides by the images of all ranks, who may hold different numbers of them.
    optimizer = hvd.DistributedOptimizer(local, named_parameters=model.named_parameters(), op=hvd.Sum)
    # A first step with zero gradients makes room for the momentum. Otherwise Horovod takes it when a rank joins, after
    # that rank has got its weights, and with weight decay even such a step moves them.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with optimizer.skip_synchronize():
        optimizer.step()
    return optimizer


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


class EachOnce(hvd.elastic.ElasticSampler):
    """The images of this rank for each step; every image once in an epoch, however the ranks change meanwhile.

    A step takes the next batch_size * size() images of the epoch, and of these each rank every size()-th. The last step
    takes what is left, which may be nothing for some of the ranks. Horovod's own sampler repeats a few images there,
    and fails when fewer are left than half the ranks.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        super().__init__(dataset, shuffle=True, seed=seed)

    def __len__(self) -> int:
        return math.ceil(len(self.remaining_indices) / (self.batch_size * self.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        each = self.batch_size * self.num_replicas
        for first in range(0, len(self.remaining_indices), each):
            step = self.remaining_indices[first : first + each]
            # A rank for which none is left takes one all the same, to keep in pace, and does not count it.
            yield step[self.rank :: self.num_replicas] or step[:1]

    def next_step(self) -> tuple[int, int]:
        """How many images count in the next step: this rank's, and those of all ranks."""
        of_all = min(self.batch_size * self.num_replicas, len(self.dataset) - self.processed_num)
        return len(range(self.rank, of_all, self.num_replicas)), of_all

    def record_step(self) -> None:
        """The next step is done."""
        self.processed_num += self.next_step()[1]


class State(hvd.elastic.TorchState):
    """What all ranks have in common: Horovod copies it at each commit, and brings it to ranks that join."""

    def sync(self) -> None:
        super().sync()
        # Horovod brings a new rank the weights, but leaves its copy as it was: were a rank lost before the next commit,
        # the new one would go back to random weights, and might be rank 0 by then.
        self.save()

    def check_host_updates(self) -> None:
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as change:
            # Where ranks have only left, Horovod would skip the sync: the sampler would not be told, and a rank that
            # comes at that moment would wait for it forever.
            raise HostsUpdatedInterrupt(skip_sync=False) from change


def learning_rate(state: State, options: argparse.Namespace) -> float:
    """The rate for the next step.

    One step takes batch_size images of each rank, so it may be size() times as long; but not from the start, when the
    weights still change quickly (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). So the factor climbs from 1 to
    size(). When ranks come it climbs on to the new size at the same pace, when some go it falls at once. After the
    warm-up, all that falls to zero along a cosine.
    """
    done = state.sampler.processed_num / len(state.sampler.dataset)
    falling = (state.epoch + done - options.warmup_epochs) / max(options.epochs - options.warmup_epochs, 1e-9)
    return options.lr * state.factor * (1 + math.cos(math.pi * min(max(falling, 0), 1))) / 2


def warm_up(state: State, epochs: float, options: argparse.Namespace) -> None:
    """Lets the factor of the learning rate climb as far as it may in so much of the training."""
    state.factor = min(hvd.size(), state.factor + hvd.size() * epochs / max(options.warmup_epochs, 1e-9))


def train_epoch(state: State, options: argparse.Namespace) -> tuple[float, float]:
    """What is left of the epoch. Returns its loss over all ranks, and the images that all of them took per second."""
    device = next(state.model.parameters()).device
    sampler = state.sampler
    state.model.train()
    # Another dropout on each rank; and one that depends on the place in the training alone, so that a run that was
    # interrupted and resumed ends with the same weights as one that was not.
    torch.manual_seed(((options.seed * 1_000 + state.epoch) * 10_000 + state.batch) * 1_000 + hvd.rank())
    before = sampler.processed_num
    started = time.perf_counter()
    uncommitted = 0.0
    for images, labels in DataLoader(sampler.dataset, batch_sampler=sampler):
        mine, of_all = sampler.next_step()
        warm_up(state, of_all / len(sampler.dataset), options)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(state, options)
        images, labels = images.to(device), labels.to(device)
        state.optimizer.zero_grad()
        output = state.model(images)
        loss = functional.cross_entropy(output[:mine], labels[:mine], reduction="sum")
        (loss / of_all).backward()
        state.optimizer.step()  # waits for the gradients, added up over all ranks
        uncommitted += loss.item()
        sampler.record_step()
        state.batch += 1
        time.sleep(options.pause)
        if state.batch % options.commit_every == 0 and sampler.processed_num < len(sampler.dataset):
            state.loss += sum_over_ranks("loss", uncommitted)[0]
            uncommitted = 0.0
            state.commit()  # goes back to the top of `train` when ranks wait to join, or are to leave
    seconds = time.perf_counter() - started
    loss_of_all = state.loss + sum_over_ranks("loss", uncommitted)[0]
    return loss_of_all / len(sampler.dataset), (sampler.processed_num - before) / seconds


@torch.no_grad()
def evaluate(model: nn.Module, test_set: Dataset) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    device = next(model.parameters()).device
    part = Subset(test_set, range(hvd.rank(), len(test_set), hvd.size()))
    correct = 0
    model.eval()
    for images, labels in DataLoader(part, batch_size=256):
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
    correct_of_all, images_of_all = sum_over_ranks("test", correct, len(part))
    return correct_of_all / images_of_all


def sum_over_ranks(name: str, *values: float) -> list[float]:
    return hvd.allreduce(torch.tensor(values, dtype=torch.float64), name=name, op=hvd.Sum).tolist()


def checkpoint_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint-{epoch:03d}.pt"


def newest_checkpoint(folder: Path) -> int:
    """The latest epoch that has a checkpoint; 0: none. Anything else in the folder is left alone."""
    names = [path.stem.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*.pt")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def save_checkpoint(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes what a later run needs to continue after `epoch`.

    Under another name first, then renamed in one move: even if this process dies meanwhile, no reader ever sees half a
    checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, epoch)
    unfinished = path.with_suffix(".pt.tmp")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(path)


def resume(folder: Path, state: State, options: argparse.Namespace) -> None:
    """Brings every rank to the newest checkpoint that one of them has, if there is any.

    Ranks may have different ones: each was written by the process that was rank 0 at that time, on its own node.
    """
    epochs = hvd.allgather_object(newest_checkpoint(folder))
    state.epoch = max(epochs)
    if state.epoch > 0:
        root = epochs.index(state.epoch)
        path = checkpoint_path(folder, state.epoch)
        if hvd.rank() == root:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            state.model.load_state_dict(checkpoint["model"])
            state.optimizer.load_state_dict(checkpoint["optimizer"])
        hvd.broadcast_parameters(state.model.state_dict(), root_rank=root)
        hvd.broadcast_optimizer_state(state.optimizer, root_rank=root)
        state.sampler.set_epoch(state.epoch)
        warm_up(state, state.epoch, options)
        if hvd.rank() == 0:
            print(f"resumed from {path.name}: {state.epoch} epochs are done", flush=True)
    state.save()


class Charts:
    """Curves for TensorBoard and for Weights & Biases, where their packages are installed (see requirements.txt).

    Opened by the first point that is added, which only rank 0 does: several processes may in the course of a run.
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


@hvd.elastic.run
def train(state: State, test_set: Dataset, folder: Path, options: argparse.Namespace, charts: Charts) -> None:
    """Starts on all ranks at once, each with the same state, and again from here whenever ranks have come or gone."""
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if state.epoch is None:
        resume(folder, state, options)
        if hvd.rank() == 0:
            images = f"training on {len(state.sampler.dataset)} images, testing on {len(test_set)}"
            print(f"{images}, {ranks}, {next(state.model.parameters()).device.type}", flush=True)
    elif hvd.rank() == 0:
        print(f"world of {ranks}: continuing at epoch {state.epoch + 1}, batch {state.batch}", flush=True)
    accuracy = None
    while state.epoch < options.epochs:
        loss, speed = train_epoch(state, options)
        accuracy = evaluate(state.model, test_set)
        state.epoch += 1
        if hvd.rank() == 0:
            save_checkpoint(folder, state.epoch, state.model, state.optimizer)
            print(
                f"epoch {state.epoch:2d}/{options.epochs}: "
                f"loss {loss:.4f}, accuracy {accuracy:.3f}, {speed:.0f} images/s",
                flush=True,
            )
            charts.add(state.epoch, loss=loss, accuracy=accuracy, images_per_second=speed, ranks=hvd.size())
        state.batch = 0
        state.loss = 0.0
        state.speeds = [*state.speeds, speed]  # a new list: appending would change the copy of the last commit as well
        state.sampler.set_epoch(state.epoch)
        state.commit()
    if accuracy is None:
        accuracy = evaluate(state.model, test_set)
    if hvd.rank() == 0:
        speeds = state.speeds
        pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)
        charts.close()
    # The first process that ends well ends the run for all of them: none may leave before rank 0 has written it all.
    hvd.barrier()


def main() -> None:
    options = parse_arguments()
    hvd.init()
    torch.manual_seed(options.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())  # one GPU per process
        torch.cuda.set_device(device)

    train_set, test_set = load_data()
    model = build_model().to(device)
    # Nothing may be sent between ranks outside of `train`: a process that joins comes through here alone.
    state = State(
        model=model,
        optimizer=build_optimizer(model, options),
        sampler=EachOnce(train_set, options.batch_size, options.seed),
        epoch=None,  # epochs that are done; None: checkpoints were not searched for yet
        batch=0,  # steps of this epoch
        loss=0.0,  # sum over the images of this epoch
        factor=1.0,  # of the learning rate
        speeds=[],
    )
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    train(state, test_set, folder, options, Charts(folder, options))


if __name__ == "__main__":
    main()
