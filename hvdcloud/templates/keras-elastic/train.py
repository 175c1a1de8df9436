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

This needs Keras 2, which is `tf.keras` up to TensorFlow 2.15, and later with tf-keras and TF_USE_LEGACY_KERAS=1. With
Keras 3 Horovod 0.28.1 does not average gradients, and does not say so.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow.keras.elastic import KerasState
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


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


def use_one_gpu() -> None:
    """One GPU per process, and of its memory only what is needed. Must come before anything that touches a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")


class LARS(tf.keras.optimizers.SGD):
    """SGD whose step in each layer is measured by the layer's weights, which keeps large batches stable.

    You, Gitman, Ginsburg 2017, https://arxiv.org/abs/1708.03888: the gradient is scaled to `trust` times the norm of
    the weights. Biases step as in SGD. It is here because the only library that is kept and has it for Keras 2,
    tf-models-official, brings 70 packages along and needs exactly its own TensorFlow.
    """

    def __init__(
        self, learning_rate: float = 0.02, momentum: float = 0.9, trust: float = 0.3, name: str = "LARS", **kwargs
    ):
        super().__init__(learning_rate, momentum=momentum, name=name, **kwargs)
        self.trust = trust

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        if variable.shape.rank > 1:
            norm = tf.norm(variable)
            ratio = tf.math.divide_no_nan(self.trust * norm, tf.norm(gradient))
            gradient *= tf.where(norm > 0, ratio, 1.0)  # else weights that start at zero would stay there
        super().update_step(gradient, variable)

    def get_config(self) -> dict:
        return {**super().get_config(), "trust": self.trust}


def build_model(options: argparse.Namespace) -> tf.keras.Model:
    """A network for 8 x 8 pixels.

    Without batch normalisation, whose running averages each rank would keep to itself: Horovod sees gradients only.
    """
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    if options.optimizer == "lars":
        optimizer = LARS(options.lr, momentum=options.momentum, trust=options.trust)
    else:
        optimizer = tf.keras.optimizers.SGD(options.lr, momentum=options.momentum)
    optimizer.build(model.trainable_variables)  # Horovod's state and checkpoints have its momentum
    model.compile(optimizer=optimizer)  # so that a checkpoint has both; `fit` is not used
    return model


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The 1,797 digits, which come with scikit-learn: four fifths to train on, one fifth to test.

    The split must not depend on the rank, or one rank would train on what another one tests.
    """
    digits = load_digits()
    images = (digits.images[..., np.newaxis].astype("float32") - 4.9) / 6.0  # pixels are 0..16; mean and deviation
    train, test = train_test_split(np.arange(len(images)), test_size=0.2, stratify=digits.target, random_state=0)
    return (images[train], digits.target[train]), (images[test], digits.target[test])


class State(KerasState):
    """What all ranks have in common: Horovod copies it at each commit, and brings it to ranks that join."""

    def sync(self) -> None:
        try:
            super().sync()
        except tf.errors.UnknownError as error:
            # A rank was lost meanwhile. In `train` Horovod translates this error itself, but not here.
            raise HorovodInternalError(error) from error

    def check_host_updates(self) -> None:
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as change:
            # Where ranks have only left, Horovod would skip the sync: a rank that comes at that moment would wait for
            # it forever.
            raise HostsUpdatedInterrupt(skip_sync=False) from change


def learning_rate(state: State, epoch: float, options: argparse.Namespace) -> float:
    """The rate for a step, at a point of the training such as 2.5: in the middle of the third epoch.

    One step takes batch_size images of each rank, so it may be size() times as long; but not from the start, when the
    weights still change quickly (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). So the factor climbs from 1 to
    size(). When ranks come it climbs on to the new size at the same pace, when some go it falls at once. After the
    warm-up, all that falls to zero along a cosine.
    """
    falling = (epoch - options.warmup_epochs) / max(options.epochs - options.warmup_epochs, 1e-9)
    return options.lr * state.factor * (1 + math.cos(math.pi * min(max(falling, 0), 1))) / 2


def warm_up(state: State, epochs: float, options: argparse.Namespace) -> None:
    """Lets the factor of the learning rate climb as far as it may in so much of the training."""
    state.factor = min(hvd.size(), state.factor + hvd.size() * epochs / max(options.warmup_epochs, 1e-9))


Images = tuple[np.ndarray, np.ndarray]  # and their labels


def build_step(model: tf.keras.Model) -> Callable[..., tf.Tensor]:
    """What one step does with the images of this rank. Returns the sum of their losses."""

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 8, 8, 1), tf.float32),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((), tf.int32),
            tf.TensorSpec((), tf.float32),
        ]
    )
    def step(images: tf.Tensor, labels: tf.Tensor, mine: tf.Tensor, of_all: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as local:
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
            loss = tf.reduce_sum(losses[:mine])
            share = loss / of_all
        # The sum, not the average: it is divided by the images of all ranks, who may hold different numbers of them.
        tape = hvd.DistributedGradientTape(local, op=hvd.Sum)
        gradients = tape.gradient(share, model.trainable_variables)  # waits for those of all ranks
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def train_epoch(state: State, step: Callable, train_set: Images, options: argparse.Namespace) -> tuple[float, float]:
    """What is left of the epoch. Returns its loss over all ranks, and the images that all of them took per second.

    Every image is taken once, however the ranks change meanwhile: each step takes the next batch_size * size() images
    of the epoch, and of these each rank every size()-th.
    """
    images, labels = train_set
    order = np.random.default_rng([options.seed, state.epoch]).permutation(len(images))
    before = state.done
    started = time.perf_counter()
    uncommitted = 0.0
    while state.done < len(images):
        of_all = order[state.done : state.done + options.batch_size * hvd.size()]
        mine = of_all[hvd.rank() :: hvd.size()]
        taken = mine if len(mine) else of_all[:1]  # a rank for which none is left keeps in pace with one, not counted
        warm_up(state, len(of_all) / len(images), options)
        state.optimizer.learning_rate.assign(learning_rate(state, state.epoch + state.done / len(images), options))
        uncommitted += float(step(images[taken], labels[taken], len(mine), float(len(of_all))))
        state.done += len(of_all)
        state.batch += 1
        time.sleep(options.pause)
        if state.batch % options.commit_every == 0 and state.done < len(images):
            state.loss += sum_over_ranks("loss", uncommitted)[0]
            uncommitted = 0.0
            state.commit()  # goes back to the top of `train` when ranks wait to join, or are to leave
    seconds = time.perf_counter() - started
    loss_of_all = state.loss + sum_over_ranks("loss", uncommitted)[0]
    return loss_of_all / len(images), (state.done - before) / seconds


def evaluate(model: tf.keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    part = slice(hvd.rank(), None, hvd.size())
    predicted = model.predict(images[part], batch_size=256, verbose=0).argmax(axis=1)
    correct, total = sum_over_ranks("test", (predicted == labels[part]).sum(), len(labels[part]))
    return correct / total


def sum_over_ranks(name: str, *values: float) -> list[float]:
    return hvd.allreduce(tf.constant(values, tf.float64), name=name, op=hvd.Sum).numpy().tolist()


def checkpoint_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint-{epoch:03d}.keras"


def newest_checkpoint(folder: Path) -> int:
    """The latest epoch that has a checkpoint; 0: none. Anything else in the folder is left alone."""
    names = [path.stem.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*.keras")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def save_checkpoint(folder: Path, epoch: int, model: tf.keras.Model) -> None:
    """Writes what a later run needs to continue after `epoch`: the model and the optimizer's state.

    Under another name first, then renamed in one move: even if this process dies meanwhile, no reader ever sees half a
    checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished.keras"
    model.save(unfinished)
    unfinished.replace(checkpoint_path(folder, epoch))


def resume(folder: Path, state: State, options: argparse.Namespace) -> None:
    """Brings every rank to the newest checkpoint that one of them has, if there is any.

    Ranks may have different ones: each was written by the process that was rank 0 at that time, on its own node.
    """
    epochs = hvd.allgather(tf.constant([newest_checkpoint(folder)]), name="epochs").numpy().tolist()
    state.epoch = max(epochs)
    if state.epoch > 0:
        root = epochs.index(state.epoch)
        path = checkpoint_path(folder, state.epoch)
        if hvd.rank() == root:
            saved = tf.keras.models.load_model(path, custom_objects={"LARS": LARS})
            state.model.set_weights(saved.get_weights())
            state.optimizer.set_weights([variable.numpy() for variable in saved.optimizer.variables])
        hvd.broadcast_variables(state.model.variables, root_rank=root)
        hvd.broadcast_variables(state.optimizer.variables, root_rank=root)
        warm_up(state, state.epoch, options)
        if hvd.rank() == 0:
            print(f"resumed from {path.name}: {state.epoch} epochs are done", flush=True)
    state.save()


class Charts:
    """Curves for TensorBoard, and for Weights & Biases where its package is installed (see requirements.txt).

    Opened by the first point that is added, which only rank 0 does: several processes may in the course of a run.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options

    @cached_property
    def tensorboard(self) -> tf.summary.SummaryWriter:
        return tf.summary.create_file_writer(str(self.folder / "tensorboard"))

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
        with self.tensorboard.as_default(step=epoch):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self.tensorboard.flush()
        if self.wandb:
            self.wandb.log(values, step=epoch)

    def close(self) -> None:
        self.tensorboard.close()
        if self.wandb:
            self.wandb.finish()


@hvd.elastic.run
def train(
    state: State, step: Callable, data: tuple[Images, Images], folder: Path, options: argparse.Namespace, charts: Charts
) -> None:
    """Starts on all ranks at once, each with the same state, and again from here whenever ranks have come or gone."""
    train_set, test_set = data
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if state.epoch is None:
        resume(folder, state, options)
        if hvd.rank() == 0:
            device = "cuda" if tf.config.list_physical_devices("GPU") else "cpu"
            images = f"training on {len(train_set[0])} images, testing on {len(test_set[0])}"
            print(f"{images}, {ranks}, {device}", flush=True)
    elif hvd.rank() == 0:
        print(f"world of {ranks}: continuing at epoch {state.epoch + 1}, batch {state.batch}", flush=True)
    accuracy = None
    while state.epoch < options.epochs:
        loss, speed = train_epoch(state, step, train_set, options)
        accuracy = evaluate(state.model, *test_set)
        state.epoch += 1
        if hvd.rank() == 0:
            save_checkpoint(folder, state.epoch, state.model)
            print(
                f"epoch {state.epoch:2d}/{options.epochs}: "
                f"loss {loss:.4f}, accuracy {accuracy:.3f}, {speed:.0f} images/s",
                flush=True,
            )
            charts.add(state.epoch, loss=loss, accuracy=accuracy, images_per_second=speed, ranks=hvd.size())
        state.batch = 0
        state.done = 0
        state.loss = 0.0
        state.speeds = [*state.speeds, speed]  # a new list: appending would change the copy of the last commit as well
        state.commit()
    if accuracy is None:
        accuracy = evaluate(state.model, *test_set)
    if hvd.rank() == 0:
        speeds = state.speeds
        pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)
        charts.close()
    # The first process that ends well ends the run for all of them: none may leave before rank 0 has written it all.
    sum_over_ranks("end", 0)


def main() -> None:
    options = parse_arguments()
    hvd.init()
    # Another dropout on each rank, and other weights, of which rank 0's count.
    tf.keras.utils.set_random_seed(options.seed + hvd.rank())
    use_one_gpu()
    data = load_data()
    model = build_model(options)
    # Nothing may be sent between ranks outside of `train`: a process that joins comes through here alone.
    state = State(
        model,
        epoch=None,  # epochs that are done; None: checkpoints were not searched for yet
        batch=0,  # steps of this epoch
        done=0,  # images of this epoch
        loss=0.0,  # sum over these images
        factor=1.0,  # of the learning rate
        speeds=[],
    )
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    train(state, build_step(model), data, folder, options, Charts(folder, options))


if __name__ == "__main__":
    main()
