"""Trains a small convolutional network on scikit-learn's digits, on as many processes as Horovod started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here
    python train.py                                           # one process, no launcher

Every process ("rank") holds the whole model and works on its own share of the images. Horovod averages the gradients,
so that the weights stay the same everywhere. Only rank 0 prints and writes checkpoints.

A run that finds checkpoints in its folder continues after the newest one. Before hvdcloud starts a run it puts the
files of the cluster's previous run into that folder, so a second `hvdcloud run` continues where the first one ended.

This needs Keras 2, which is `tf.keras` up to TensorFlow 2.15, and later with tf-keras and TF_USE_LEGACY_KERAS=1. With
Keras 3 Horovod 0.28.1 does not average gradients, and does not say so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import broadcast_variables
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on handwritten digits with Horovod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--optimizer", choices=["sgd", "lars"], default="sgd", help="lars: for large batches")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=int, default=3, help="epochs until that product is reached")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    parser.add_argument("--trust", type=float, default=0.3, help="trust coefficient of LARS")
    parser.add_argument("--seed", type=int, default=1, help="first weights, order of the images, dropout")
    return parser.parse_args()


def use_one_gpu() -> str:
    """One GPU per process, and of its memory only what is needed. Must come before anything that touches a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    return "cuda" if gpus else "cpu"


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
    # One step averages over size() batches, so it may be size() times as long.
    rate = options.lr * hvd.size()
    if options.optimizer == "lars":
        optimizer = LARS(rate, momentum=options.momentum, trust=options.trust)
    else:
        optimizer = tf.keras.optimizers.SGD(rate, momentum=options.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer)
    optimizer.build(model.trainable_variables)  # a checkpoint may have values for its momentum
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The 1,797 digits, which come with scikit-learn: four fifths to train on, one fifth to test.

    The split must not depend on the rank, or one rank would train on what another one tests.
    """
    digits = load_digits()
    images = (digits.images[..., np.newaxis].astype("float32") - 4.9) / 6.0  # pixels are 0..16; mean and deviation
    train, test = train_test_split(np.arange(len(images)), test_size=0.2, stratify=digits.target, random_state=0)
    return (images[train], digits.target[train]), (images[test], digits.target[test])


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
        classes = {cls.__name__: cls for cls in (tf.keras.optimizers.SGD, LARS)}
        saved = tf.keras.models.load_model(path, custom_objects=classes)
        model.set_weights(saved.get_weights())
        model.optimizer.set_weights([variable.numpy() for variable in saved.optimizer.variables])
        model.optimizer.learning_rate.assign(saved.optimizer.learning_rate)
        done = int(path.stem.removeprefix("checkpoint-"))
        print(f"resumed from {path.name}: {done} epochs are done", flush=True)
    rate = model.optimizer.learning_rate
    rate.assign(hvd.broadcast(rate.numpy(), root_rank=0, name="learning_rate"))
    return int(hvd.broadcast(done, root_rank=0, name="epochs_done"))


def evaluate(model: tf.keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    """The accuracy on the whole test set, each rank having looked at its part."""
    predicted = model.predict(images, batch_size=256, verbose=0).argmax(axis=1)
    # Sums are added up, since ranks may hold different numbers of images.
    sums = [float((predicted == labels).sum()), float(len(labels))]
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
    # Other weights and another dropout on each rank: rank 0's weights are those that count.
    tf.keras.utils.set_random_seed(options.seed + hvd.rank())
    device = use_one_gpu()

    (train_images, train_labels), (test_images, test_labels) = load_data()
    # Equally many images for each rank, which keeps their steps in pace; a few may be left out. In the test none may
    # be, and no rank waits for another. An epoch so takes size() times fewer steps: programs in which every rank goes
    # through all images divide the number of epochs by size() instead.
    share = len(train_images) // hvd.size()
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
    test = slice(hvd.rank(), None, hvd.size())

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
    report = Report(share * hvd.size(), options.epochs)
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    if hvd.rank() == 0:
        callbacks += [*save_checkpoints(folder), *charts(folder, options), report]
        print(f"training on {len(train_images)} images, testing on {len(test_images)}, {ranks}, {device}", flush=True)
    model.fit(
        train_images[mine],
        train_labels[mine],
        batch_size=options.batch_size,
        validation_data=(test_images[test], test_labels[test]),
        callbacks=callbacks,
        initial_epoch=first,
        epochs=options.epochs,
        verbose=0,
    )
    if first >= options.epochs:
        broadcast_variables(model.variables, root_rank=0)  # there was no step after which the callback did it
    check_weights_are_equal(model)
    accuracy = evaluate(model, test_images[test], test_labels[test])
    if hvd.rank() == 0:
        speeds = report.speeds
        pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
        print(f"weights are equal on {ranks}", flush=True)
        print(f"final: accuracy {accuracy:.3f}, {pace}, {ranks}", flush=True)


if __name__ == "__main__":
    main()
