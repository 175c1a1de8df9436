"""Measures the nodes before a long run: the all-reduces of messages of every size, and the steps of every rank.

A node is suspicious if its ranks compute much more slowly than the others, which wait for it in every step. The table
goes to the log, and as JSON to bench.json in the checkpoint folder. It reduces by what started it: Horovod, or torchrun
(run.launcher), and then torch.distributed.
"""

import argparse
import atexit
import json
import os
import time
from functools import partial
from pathlib import Path

import torch


def join():
    """Joins the ranks that torchrun or Horovod has started. Returns this one's number, its number on the node, how many
    there are, and two functions: one reduces a tensor over all ranks, one gets an object of each."""
    if "LOCAL_RANK" not in os.environ:
        import horovod.torch as hvd

        hvd.init()

        def reduce(tensor):
            hvd.allreduce_(tensor, name=f"message.{len(tensor)}")

        return hvd.rank(), hvd.local_rank(), hvd.size(), reduce, hvd.allgather_object
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(dist.destroy_process_group)

    def gather(own):
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return found

    return dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size(), dist.all_reduce, gather


def median_seconds(work, repeat):
    """The median time that `work` takes, in seconds."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[len(seconds) // 2]


def reduce_one(reduce, tensor):
    """One all-reduce, until its result is there on a GPU too."""
    reduce(tensor)
    tensor.sum().item()


def reduce_all(sizes, repeat, device, reduce, ranks):
    """For each message size in bytes: seconds of an all-reduce, and the bandwidth of each rank's network in bytes/s."""
    found = []
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device)
        reduce_one(reduce, tensor)  # The first one makes connections.
        seconds = median_seconds(partial(reduce_one, reduce, tensor), repeat)
        # A ring sends and receives each byte 2 (n - 1) / n times.
        bandwidth = 2 * (ranks - 1) / ranks * size / seconds
        found.append({"bytes": size, "seconds": seconds, "bytes_per_second": bandwidth})
    return found


def compute(width, repeat, device):
    """Seconds that a step of this rank takes without any other rank."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(device)
    batch = torch.ones(64, width, device=device)

    def step():
        model.zero_grad()
        model(batch).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    step()
    return median_seconds(step, repeat)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=64, help="the largest message, in MB")
    parser.add_argument("--repeat", type=int, default=20, help="how often each figure is measured")
    parser.add_argument("--width", type=int, default=1024, help="of the layers that are computed")
    options = parser.parse_args()

    rank, local_rank, size, reduce, gather = join()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    own = {"rank": rank, "node": os.environ.get("HOROVOD_HOSTNAME") or os.uname().nodename}
    own["seconds"] = compute(options.width, options.repeat, device)
    ranks = gather(own)
    sizes = [4 * 10**power for power in range(3, 8) if 4 * 10**power < options.largest * 10**6]
    messages = reduce_all([*sizes, options.largest * 10**6], options.repeat, device, reduce, size)

    if rank == 0:
        usual = sorted(each["seconds"] for each in ranks)[(len(ranks) - 1) // 2]
        print(f"{'RANK':>6}  {'NODE':24} {'STEP':>10}  AGAINST THE MEDIAN")
        for each in ranks:
            slow = "  <- slow" if each["seconds"] > 1.5 * usual else ""
            ratio = each["seconds"] / usual
            print(f"{each['rank']:>6}  {each['node']:24} {each['seconds'] * 1e3:7.2f} ms  {ratio:.2f}{slow}")
        print(f"{'MESSAGE':>12}  {'ALL-REDUCE':>12}  {'BANDWIDTH':>12}")
        for each in messages:
            megabytes, speed = each["bytes"] / 1e6, each["bytes_per_second"] / 1e6
            print(f"{megabytes:>9.3f} MB  {each['seconds'] * 1e3:>9.2f} ms  {speed:>7.1f} MB/s")
        result = {"ranks": ranks, "imbalance": max(each["seconds"] for each in ranks) / usual, "messages": messages}
        folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "."))
        (folder / "bench.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
