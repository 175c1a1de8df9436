"""Trains a small network on scikit-learn's handwritten digits, on as many processes as there are at the moment.

Every few steps all ranks commit: they keep a copy of their state in memory. When a rank is lost, the others go back to
the last commit and continue without it. New ranks get the state of rank 0 at the next commit. Both times `train` starts
again from its top, and ranks are numbered again: any process may become rank 0. A run continues after the newest
checkpoint in its folder, where hvdcloud puts the files of the cluster's previous run.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def load_data(device):
    """The 1,797 digits, four fifths to train on, one fifth to test: the same split on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    data = TensorDataset(images, torch.tensor(digits.target, device=device))
    train, test = train_test_split(range(len(data)), test_size=0.2, stratify=digits.target, random_state=0)
    return Subset(data, train), Subset(data, test)


class State(hvd.elastic.TorchState):
    """What Horovod copies at each commit, and brings to ranks that join."""

    def sync(self):
        super().sync()
        self.save()  # else a new rank that goes back before its first commit would go back to random weights

    def check_host_updates(self):
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as change:
            # Where ranks have only left, Horovod skips the sync, for which a rank that comes just then would wait.
            raise HostsUpdatedInterrupt(skip_sync=False) from change


def train_epoch(state, train_set, options):
    """What is left of the epoch, of whose images `state.done` are done; returns the loss, averaged over all ranks."""
    order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(state.epoch)).tolist()[state.done :]
    mine = order[: len(order) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]  # equally many: steps keep in pace
    losses = []
    for images, labels in DataLoader(Subset(train_set, mine), batch_size=options.batch_size):
        # A step averages over size() batches, so it may be size() times as long; but not from the start.
        warm = min(1.0, (state.epoch + state.done / len(train_set)) / options.warmup_epochs)
        for group in state.optimizer.param_groups:
            group["lr"] = options.lr * (1 + (hvd.size() - 1) * warm)
        state.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(state.model(images), labels)
        loss.backward()
        state.optimizer.step()  # waits for the gradients averaged over all ranks
        losses.append(loss.item())
        state.done += len(labels) * hvd.size()
        time.sleep(options.pause)
        if len(losses) % options.commit_every == 0:
            state.commit()  # goes back to the top of `train` when ranks wait to join, or are to leave
    return hvd.allreduce(torch.tensor(losses or [0.0]).mean(), name="loss").item()


@torch.no_grad()
def evaluate(model, test_set):
    """The accuracy on the whole test set: each rank looks at its part, and sums are added up over all ranks."""
    part = DataLoader(Subset(test_set, range(hvd.rank(), len(test_set), hvd.size())), batch_size=256)
    right = sum((model(images).argmax(dim=1) == labels).sum().item() for images, labels in part)
    return hvd.allreduce(torch.tensor(right), name="test", op=hvd.Sum).item() / len(test_set)


def save_checkpoint(folder, state):
    """Under another name first, then renamed: even if this process dies meanwhile, no reader sees half a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"epoch": state.epoch, "model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
    torch.save(content, folder / "unfinished.tmp")
    (folder / "unfinished.tmp").replace(folder / f"checkpoint-{state.epoch:03d}.pt")


def resume(folder, state):
    """Bring all ranks to the newest checkpoint, which is on the node that had rank 0; returns the epochs done."""
    found = hvd.allgather_object(max((path.name for path in folder.glob("checkpoint-*.pt")), default=""))
    if not (newest := max(found)):
        return 0
    root = found.index(newest)
    checkpoint = torch.load(folder / newest, map_location="cpu", weights_only=True) if hvd.rank() == root else None
    checkpoint = hvd.broadcast_object(checkpoint, root_rank=root, name="checkpoint")  # the types would differ
    state.model.load_state_dict(checkpoint["model"])
    state.optimizer.load_state_dict(checkpoint["optimizer"])
    if hvd.rank() == 0:
        print(f"resumed from {newest}: {checkpoint['epoch']} epochs are done", flush=True)
    return checkpoint["epoch"]


@hvd.elastic.run
def train(state, train_set, test_set, folder, options):
    """Starts on all ranks at once, each with the same state, and again from here whenever ranks have come or gone."""
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if state.epoch is None:
        state.epoch = resume(folder, state)
        state.save()
    elif hvd.rank() == 0:
        print(f"world of {ranks}: continuing at epoch {state.epoch + 1}", flush=True)
    pace = "nothing left to train (--fresh starts empty)"
    while state.epoch < options.epochs:
        began, before = time.perf_counter(), state.done
        loss = train_epoch(state, train_set, options)
        pace = f"{(state.done - before) / (time.perf_counter() - began):.0f} images/s"
        accuracy = evaluate(state.model, test_set)
        state.epoch, state.done = state.epoch + 1, 0
        if hvd.rank() == 0:
            save_checkpoint(folder, state)
            print(f"epoch {state.epoch}/{options.epochs}: loss {loss:.4f}, accuracy {accuracy:.3f}, {pace}", flush=True)
        state.commit()
    accuracy = evaluate(state.model, test_set)
    if hvd.rank() == 0:
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)
    hvd.barrier()  # the first process that ends well ends the run for all: not before rank 0 has written it all


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=3, help="epochs until that product is reached")
    parser.add_argument("--commit-every", type=int, default=5, help="steps between commits: what a lost rank costs")
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait after each step, to watch it longer")
    options = parser.parse_args()
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # one GPU per process
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Nothing may be sent between ranks outside of `train`: a process that joins comes through here alone.
    state = State(model=model, optimizer=optimizer, epoch=None, done=0)
    train(state, *load_data(device), folder, options)


if __name__ == "__main__":
    main()
