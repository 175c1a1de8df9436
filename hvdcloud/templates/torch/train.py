"""Trains a small network on scikit-learn's handwritten digits, on as many processes as Horovod started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here

Every process ("rank") holds the whole model and works on its own share of each epoch. Horovod averages the gradients.
A run continues after the newest checkpoint in its folder, where hvdcloud puts the files of the cluster's previous run.
"""

import argparse
import math
import os
import statistics
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def load_data():
    """The 1,797 digits, four fifths to train on, one fifth to test: the same split on every rank."""
    digits = load_digits()
    images = torch.tensor((digits.images - 4.9) / 6.0, dtype=torch.float32).unsqueeze(1)  # by mean and deviation
    data = TensorDataset(images, torch.tensor(digits.target))
    train, test = train_test_split(range(len(data)), test_size=0.2, stratify=digits.target, random_state=0)
    return Subset(data, train), Subset(data, test)


def build_model():
    """Without batch normalisation: Horovod averages gradients, and each rank would keep running averages of its own."""
    layers = [nn.Conv2d(1, 32, kernel_size=3, padding=1), nn.ReLU()]
    for channels in (32, 64):
        layers += [nn.Conv2d(channels, 64, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 2 * 2, 10))


def learning_rate(epoch, options):
    """The rate at a point of the training, such as 2.5: in the middle of the third epoch.

    A step averages over size() batches, so it may be size() times as long; but not from the start, when the weights
    still change quickly (https://arxiv.org/abs/1706.02677). After the warm-up it falls to zero along a cosine.
    """
    if epoch < options.warmup_epochs:
        return options.lr * (1 + (hvd.size() - 1) * epoch / options.warmup_epochs)
    done = (epoch - options.warmup_epochs) / max(options.epochs - options.warmup_epochs, 1e-9)
    return options.lr * hvd.size() * (1 + math.cos(math.pi * min(done, 1))) / 2


def train_epoch(epoch, model, optimizer, loader, options):
    """One pass over this rank's share; returns the loss, averaged over all ranks."""
    device = next(model.parameters()).device
    model.train()
    loader.sampler.set_epoch(epoch)  # without it every epoch would come in the same order
    torch.manual_seed(1000 * epoch + hvd.rank())  # a resumed run has the same dropout as one that was not interrupted
    losses = []
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch + step / len(loader), options)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()  # waits for the gradients averaged over all ranks
        losses.append(loss.item())
    return hvd.allreduce(torch.tensor(losses).mean(), name="loss").item()


@torch.no_grad()
def evaluate(model, loader):
    """The accuracy on the whole test set: each rank looks at its part, and sums are added up over all ranks."""
    device = next(model.parameters()).device
    model.eval()
    right = sum((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item() for images, labels in loader)
    correct, images = hvd.allreduce(torch.tensor([right, len(loader.dataset)]), name="test", op=hvd.Sum).tolist()
    return correct / images


def save_checkpoint(folder, epoch, model, optimizer):
    """Under another name first, then renamed: even if this process dies meanwhile, no reader sees half a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished.tmp"
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(folder / f"checkpoint-{epoch:03d}.pt")


def resume(folder, model, optimizer):
    """Bring every rank to the state of rank 0, which first loads the newest checkpoint; returns the epochs done."""
    done = 0
    if hvd.rank() == 0 and (found := sorted(folder.glob("checkpoint-*.pt"))):
        checkpoint = torch.load(found[-1], map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["epoch"]
        print(f"resumed from {found[-1].name}: {done} epochs are done", flush=True)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # first: it may take a step to make room for the state
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.broadcast_object(done, root_rank=0, name="epochs_done")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=float, default=3, help="epochs until that product is reached")
    options = parser.parse_args()
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))

    hvd.init()
    torch.manual_seed(1)
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # one GPU per process
    train_set, test_set = load_data()
    # Each rank gets every size()-th image: an epoch takes size() times fewer steps. Programs in which every rank goes
    # through all images divide the number of epochs by size() instead. In the test none may count twice.
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)
    test_loader = DataLoader(Subset(test_set, range(hvd.rank(), len(test_set), hvd.size())), batch_size=256)

    model = build_model().to(device)
    local = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(local, named_parameters=model.named_parameters())
    first = resume(folder, model, optimizer)
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if hvd.rank() == 0:
        print(f"training on {len(train_set)} images, testing on {len(test_set)}, {ranks}, {device.type}", flush=True)
    speeds = []
    for epoch in range(first, options.epochs):
        began = time.perf_counter()
        loss = train_epoch(epoch, model, optimizer, train_loader, options)
        speeds.append(len(sampler) * hvd.size() / (time.perf_counter() - began))
        accuracy = evaluate(model, test_loader)
        if hvd.rank() == 0:
            save_checkpoint(folder, epoch + 1, model, optimizer)
            said = f"loss {loss:.4f}, accuracy {accuracy:.3f}, {speeds[-1]:.0f} images/s"
            print(f"epoch {epoch + 1:2d}/{options.epochs}: {said}", flush=True)
    if not speeds:
        accuracy = evaluate(model, test_loader)
    pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
    if hvd.rank() == 0:
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)


if __name__ == "__main__":
    main()
