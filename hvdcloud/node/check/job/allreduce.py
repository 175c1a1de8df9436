"""Measures all-reduces of Horovod between the ranks that run it, for about this many seconds.

Runs under the user's Python with the image's own Horovod and framework. Rank 0 writes what all have found as one line
with a mark before it, since the launcher and the framework write as well.

Arguments: seconds, bytes of the large message.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from statistics import median

MARK = "HVDCLOUD-CHECK "
SMALL = 4
SMALL_SHARE = 0.2
"""Of the time: for the small message, whose time is the latency."""
MOST = 1000
FIRST, GROWTH, LEAST = 1 << 18, 4, 4
"""Bytes of the first large message that is tried, how much larger the next is, how often one is sent at least."""


class TorchRank:
    """This rank under PyTorch, on a GPU of its own if the node has any."""

    def __init__(self) -> None:
        self.torch, self.hvd = import_module("torch"), import_module("horovod.torch")
        self.hvd.init()
        self.cuda = bool(self.torch.cuda.is_available())
        if self.cuda:
            self.torch.cuda.set_device(self.hvd.local_rank())

    def reducer(self, size: int) -> "Callable[[], object]":
        """What all-reduces this many bytes, and returns when that is done."""
        tensor = self.torch.ones(size // 4, device="cuda" if self.cuda else "cpu")

        def reduce() -> None:
            self.hvd.allreduce_(tensor, name=f"check.{size}", op=self.hvd.Average)
            if self.cuda:
                self.torch.cuda.synchronize()

        return reduce

    def mean(self, value: float) -> float:
        """The mean of all ranks' numbers: the same on each."""
        return float(self.hvd.allreduce(self.torch.tensor([value]), name="check.mean", op=self.hvd.Average)[0])


class TensorFlowRank:
    """This rank under TensorFlow, on a GPU of its own if the node has any."""

    def __init__(self) -> None:
        self.tf, self.hvd = import_module("tensorflow"), import_module("horovod.tensorflow")
        self.hvd.init()
        if found := self.tf.config.list_physical_devices("GPU"):
            self.tf.config.set_visible_devices(found[self.hvd.local_rank()], "GPU")

    def reducer(self, size: int) -> "Callable[[], object]":
        """What all-reduces this many bytes, and returns when that is done."""
        tensor = self.tf.ones(size // 4)
        # Copying one number waits for a GPU, too.
        return lambda: self.hvd.allreduce(tensor, name=f"check.{size}", op=self.hvd.Average)[0].numpy()

    def mean(self, value: float) -> float:
        """The mean of all ranks' numbers: the same on each."""
        return float(self.hvd.allreduce(self.tf.constant([value]), name="check.mean", op=self.hvd.Average)[0])


def timed(reduce: "Callable[[], object]") -> float:
    """How long one all-reduce took."""
    began = time.perf_counter()
    reduce()
    return time.perf_counter() - began


def measure(rank: "TorchRank | TensorFlowRank", size: int, seconds: float) -> "list[float]":
    """How long each all-reduce of this many bytes took."""
    reduce = rank.reducer(size)
    # The first one sets up connections.
    reduce()
    # All ranks do it equally often, or they would wait for each other without end.
    each = rank.mean(timed(reduce))
    return [timed(reduce) for _ in range(max(1, min(MOST, int(seconds / max(each, 1e-6)))))]


def affordable(rank: "TorchRank | TensorFlowRank", size: int, seconds: float) -> int:
    """This many bytes, or as many as there is time for: a bad network may take minutes for the others."""
    found = min(size, FIRST)
    while found < size and LEAST * GROWTH * rank.mean(timed(rank.reducer(found))) < seconds:
        found = min(size, found * GROWTH)
    return found


def main(seconds: float, size: int) -> None:
    """Measure, and let rank 0 say it."""
    rank = TorchRank() if find_spec("torch") else TensorFlowRank()
    small = measure(rank, SMALL, SMALL_SHARE * seconds)
    size = affordable(rank, size, (1 - SMALL_SHARE) * seconds)
    large = measure(rank, size, (1 - SMALL_SHARE) * seconds)
    if rank.hvd.rank() == 0:
        found = {
            "ranks": rank.hvd.size(),
            "latency": round(median(small), 7),
            "size": size,
            "seconds": round(median(large), 6),
            "count": len(large),
        }
        sys.stdout.write(f"{MARK}{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
