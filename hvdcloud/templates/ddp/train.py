"""Trains a small network on scikit-learn's handwritten digits, on as many processes as torchrun started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    torchrun --nproc-per-node 2 train.py                      # two processes, here

Every process ("rank") holds the whole model and works on its own share of each epoch. DistributedDataParallel (DDP)
averages the gradients. A run continues after the newest checkpoint in its folder, where hvdcloud puts the files of the
cluster's previous run.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_data(device):
    """The 1,797 digits, four fifths to train on, one fifth to test: the same split on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)
    train, test = train_test_split(range(len(labels)), test_size=0.2, stratify=digits.target, random_state=0)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_epoch(epoch, model, optimizer, loader, options):
    """One pass over this rank's share; returns the loss, averaged over all ranks."""
    model.train()
    loader.sampler.set_epoch(epoch)  # without it every epoch would come in the same order
    losses = []
    for step, (images, labels) in enumerate(loader):
        # A step averages over all ranks' batches, so it may be that many times as long; but not from the start.
        warm = min(1.0, (epoch + step / len(loader)) / options.warmup_epochs)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * (1 + (dist.get_world_size() - 1) * warm)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # averages the gradients over all ranks
        optimizer.step()
        losses.append(loss.detach())
    average = torch.stack(losses).mean()
    dist.all_reduce(average)  # adds up
    return average.item() / dist.get_world_size()


@torch.no_grad()
def evaluate(model, test_set):
    """The accuracy on the whole test set: each rank looks at its part, and sums are added up over all ranks."""
    images, labels = test_set[dist.get_rank() :: dist.get_world_size()]
    model.eval()
    right = (model.module(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(test_set)


def save_checkpoint(folder, epoch, model, optimizer):
    """Under another name first, then renamed: even if this process dies meanwhile, no reader sees half a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, folder / "unfinished.tmp")
    (folder / "unfinished.tmp").replace(folder / f"checkpoint-{epoch:03d}.pt")


def resume(folder, model, optimizer):
    """Bring every rank to the newest checkpoint that rank 0 has; returns the epochs done."""
    found = [None]
    if dist.get_rank() == 0 and (files := sorted(folder.glob("checkpoint-*.pt"))):
        found = [torch.load(files[-1], map_location="cpu", weights_only=True)]
        print(f"resumed from {files[-1].name}: {found[0]['epoch']} epochs are done", flush=True)
    dist.broadcast_object_list(found)  # from rank 0
    if found[0] is None:
        return 0
    model.module.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return found[0]["epoch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=3, help="epochs until that product is reached")
    options = parser.parse_args()
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # one GPU per process
    dist.init_process_group("nccl" if cuda else "gloo")  # torchrun's variables say with whom
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    train_set, test_set = load_data(device)
    sampler = DistributedSampler(train_set)  # deals out each epoch: this rank gets every size-th image of its order
    loader = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    model = DistributedDataParallel(model)  # gives all ranks the weights of rank 0
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    first = resume(folder, model, optimizer)
    ranks = f"{size} rank" + ("s" if size > 1 else "")
    if rank == 0:
        print(f"training on {len(train_set)} images, testing on {len(test_set)}, {ranks}, {device.type}", flush=True)
    pace = "nothing left to train (--fresh starts empty)"
    for epoch in range(first, options.epochs):
        began = time.perf_counter()
        loss = train_epoch(epoch, model, optimizer, loader, options)
        pace = f"{len(sampler) * size / (time.perf_counter() - began):.0f} images/s"
        accuracy = evaluate(model, test_set)
        if rank == 0:
            save_checkpoint(folder, epoch + 1, model, optimizer)
            print(f"epoch {epoch + 1}/{options.epochs}: loss {loss:.4f}, accuracy {accuracy:.3f}, {pace}", flush=True)
    accuracy = evaluate(model, test_set)
    if rank == 0:
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
