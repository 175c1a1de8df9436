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
import hashlib
import itertools
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import allgather_object, broadcast_variables

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
    parser.add_argument("--warmup-epochs", type=int, default=1, help="epochs until that product is reached")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    parser.add_argument("--readers", type=int, default=4, help="threads of each rank that read and decode shards")
    parser.add_argument("--seed", type=int, default=1, help="first weights, order of the images")
    return parser.parse_args()


def use_one_gpu() -> str:
    """One GPU per process, and of its memory only what is needed. Must come before anything that touches a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    return "cuda" if gpus else "cpu"


def build_model(options: argparse.Namespace) -> tf.keras.Model:
    """A network for 16 x 16 pixels.

    Without batch normalisation, whose running averages each rank would keep to itself: Horovod sees gradients only.
    """
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((SIZE, SIZE, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    # One step averages over size() batches, so it may be size() times as long.
    optimizer = tf.keras.optimizers.SGD(options.lr * hvd.size(), momentum=options.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer)
    optimizer.build(model.trainable_variables)  # a checkpoint may have values for its momentum
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


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
        same_everywhere = len(set(allgather_object(tuple(file.name for file in self.files)))) == 1
        self.place = (hvd.rank(), hvd.size()) if same_everywhere else (hvd.local_rank(), hvd.local_size())
        images = sum(part.last - part.first for part in share(self.files, *self.place))
        counts = allgather_object(images)
        self.images = sum(counts)
        # The same on all ranks: one that took a step more than the others would wait for them without end.
        self.steps = math.ceil(max(counts) / batch_size)

    def epoch(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This rank's images and labels, each once, in exactly `steps` batches."""
        files = list(self.files)
        if self.seed is not None:
            Random(f"{self.seed} {epoch}").shuffle(files)  # alike on all ranks, which share out the same list
        parts = share(files, *self.place)
        count = sum(part.last - part.first for part in parts)
        pieces = self.decoded(parts, epoch)
        images, labels = np.empty((0, SIZE, SIZE, 1), np.float32), np.empty(0, np.int64)
        for step in range(self.steps):
            wanted = count * (step + 1) // self.steps - count * step // self.steps
            while len(labels) < wanted:
                more_images, more_labels = next(pieces)
                images, labels = np.concatenate([images, more_images]), np.concatenate([labels, more_labels])
            yield images[:wanted], labels[:wanted]
            images, labels = images[wanted:], labels[wanted:]

    def dataset(self, first: int = 0) -> tf.data.Dataset:
        """Every epoch from `first` on, one after the other; the next batches are made while one is trained on."""

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for epoch in itertools.count(first):
                yield from self.epoch(epoch)

        kinds = (tf.TensorSpec((None, SIZE, SIZE, 1), tf.float32), tf.TensorSpec((None,), tf.int64))
        return tf.data.Dataset.from_generator(batches, output_signature=kinds).prefetch(tf.data.AUTOTUNE)

    def decoded(self, parts: list[Part], epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The parts in order, while those that follow are read already."""
        waiting: deque[Future] = deque()
        for part in parts:
            waiting.append(self.pool.submit(self.decode, part, epoch))
            if len(waiting) > self.ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def decode(self, part: Part, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        records = np.frombuffer(part.shard.read_bytes(), np.uint8).reshape(-1, RECORD)
        if self.seed is not None:
            # Alike on two ranks that share this shard, so that each image is in one of the two parts.
            order = list(range(len(records)))
            Random(f"{self.seed} {epoch} {part.shard.name}").shuffle(order)
            records = records[order]
        records = records[part.first : part.last]
        images = (records[:, 1:].astype(np.float32) - 60) / 64  # nearly mean 0 and deviation 1
        return images.reshape(-1, SIZE, SIZE, 1), records[:, 0].astype(np.int64)


class Report(tf.keras.callbacks.Callback):
    """One line for each epoch, and the images that all ranks together took per second."""

    def __init__(self, images: int, epochs: int) -> None:
        super().__init__()
        self.images = images
        self.epochs = epochs
        self.speeds = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.started = time.perf_counter()

    def on_test_begin(self, logs: dict | None = None) -> None:
        self.speeds.append(self.images / (time.perf_counter() - self.started))

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        print(
            f"epoch {epoch + 1:2d}/{self.epochs}: "
            f"loss {logs['loss']:.4f}, accuracy {logs['val_accuracy']:.3f}, {self.speeds[-1]:.0f} images/s",
            flush=True,
        )


def charts(folder: Path, options: argparse.Namespace) -> list[tf.keras.callbacks.Callback]:
    """Curves for TensorBoard, and for Weights & Biases where its package is installed (see requirements.txt)."""
    tensorboard = tf.keras.callbacks.TensorBoard(str(folder / "tensorboard"), write_graph=False)
    try:
        import wandb
    except ImportError:
        return [tensorboard]
    if not os.environ.get("WANDB_API_KEY"):
        return [tensorboard]
    run = {"project": "digits", "id": os.environ.get("HVDCLOUD_RUN"), "config": vars(options)}
    try:
        with suppress(HTTPError):  # any answer is one; without, wandb itself would wait for minutes
            urlopen(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"), timeout=5).close()
        curves = wandb.init(**run, resume="allow", settings=wandb.Settings(init_timeout=30))
    except (wandb.Error, OSError) as error:
        print(f"Weights & Biases: {error}; `wandb sync` can send this run later", flush=True)
        curves = wandb.init(**run, mode="offline", dir=folder)
    log = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: curves.log(logs, step=epoch + 1), on_train_end=lambda logs: curves.finish()
    )
    return [tensorboard, log]


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest epoch. Anything else in the folder is left alone."""
    found = [path for path in folder.glob("checkpoint-*.keras") if path.stem.removeprefix("checkpoint-").isdecimal()]
    return max(found, key=lambda path: int(path.stem.removeprefix("checkpoint-")), default=None)


def save_checkpoints(folder: Path) -> list[tf.keras.callbacks.Callback]:
    """What writes the model and the optimizer's state after each epoch.

    Under another name first, then renamed in one move: even if this process dies meanwhile, no reader ever sees half a
    checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished.keras"
    return [
        tf.keras.callbacks.ModelCheckpoint(str(unfinished)),
        tf.keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: unfinished.replace(folder / f"checkpoint-{epoch + 1:03d}.keras")
        ),
    ]


def resume(folder: Path, model: tf.keras.Model) -> int:
    """Brings rank 0 to the state of the newest checkpoint, if there is one.

    The other ranks get weights and momentum from BroadcastGlobalVariablesCallback, and the learning rate here.

    Returns:
        How many epochs are done.
    """
    done = 0
    path = newest_checkpoint(folder) if hvd.rank() == 0 else None
    if path is not None:
        # In the file, the optimizer's class is one of Horovod's, made of these.
        classes = {cls.__name__: cls for cls in (tf.keras.optimizers.SGD,)}
        saved = tf.keras.models.load_model(path, custom_objects=classes)
        model.set_weights(saved.get_weights())
        model.optimizer.set_weights([variable.numpy() for variable in saved.optimizer.variables])
        model.optimizer.learning_rate.assign(saved.optimizer.learning_rate)
        done = int(path.stem.removeprefix("checkpoint-"))
        print(f"resumed from {path.name}: {done} epochs are done", flush=True)
    rate = model.optimizer.learning_rate
    rate.assign(hvd.broadcast(rate.numpy(), root_rank=0, name="learning_rate"))
    return int(hvd.broadcast(done, root_rank=0, name="epochs_done"))


def evaluate(model: tf.keras.Model, loader: Loader) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    # Sums are added up, since ranks may hold different numbers of images.
    sums = [0.0, 0.0]
    for images, labels in loader.epoch(0):
        if len(labels):
            predicted = model.predict_on_batch(images).argmax(axis=1)
            sums = [sums[0] + float((predicted == labels).sum()), sums[1] + len(labels)]
    correct, total = hvd.allreduce(sums, name="test", op=hvd.Sum)
    return float(correct / total)


def check_weights_are_equal(model: tf.keras.Model) -> None:
    """Compares a checksum of all weights between ranks. They can differ only if something is set up wrongly.

    Raises:
        RuntimeError: they differ.
    """
    checksum = hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).digest()
    checksums = np.asarray(hvd.allgather([list(checksum)], name="checksum"))
    if (checksums != checksums[0]).any():
        raise RuntimeError("the weights are not the same on all ranks")


def main() -> None:
    options = parse_arguments()
    hvd.init()
    tf.get_logger().setLevel("ERROR")  # the callback that broadcasts is slower than a step: no need to warn
    # Other weights on each rank: rank 0's are those that count.
    tf.keras.utils.set_random_seed(options.seed + hvd.rank())
    device = use_one_gpu()
    train = Loader("train", batch_size=options.batch_size, readers=options.readers, seed=options.seed)
    test = Loader("test", batch_size=256, readers=options.readers, seed=None)

    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    model = build_model(options)
    first = resume(folder, model)

    callbacks = [
        # Weights and momentum of rank 0 go to all ranks, after the first step.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Before all callbacks that look at metrics, so that they see the same ones on all ranks.
        hvd.callbacks.MetricAverageCallback(),
        # The scaled rate is too large at the start, when the weights still change quickly (Goyal et al. 2017,
        # https://arxiv.org/abs/1706.02677). Momentum correction works with tf.keras.optimizers.legacy only.
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=options.lr * hvd.size(), warmup_epochs=options.warmup_epochs, momentum_correction=False
        ),
        # By the loss of the training: the test's must not decide anything.
        tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2),
    ]
    report = Report(train.images, options.epochs)
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if hvd.rank() == 0:
        callbacks += [*save_checkpoints(folder), *charts(folder, options), report]
        print(f"training on {train.images} images, testing on {test.images}, {ranks}, {device}", flush=True)
    if first < options.epochs:
        model.fit(
            train.dataset(first),
            steps_per_epoch=train.steps,
            validation_data=test.dataset(),
            validation_steps=test.steps,
            callbacks=callbacks,
            initial_epoch=first,
            epochs=options.epochs,
            verbose=0,
        )
    else:
        broadcast_variables(model.variables, root_rank=0)  # there was no step after which the callback did it
    check_weights_are_equal(model)
    accuracy = evaluate(model, test)
    if hvd.rank() == 0:
        speeds = report.speeds
        pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
        print(f"weights are equal on {ranks}", flush=True)
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)


if __name__ == "__main__":
    main()
