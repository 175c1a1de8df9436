"""Trains a small network on scikit-learn's handwritten digits, on as many processes as Horovod started.

    hvdcloud run                                              # on the nodes of hvdcloud.yaml
    horovodrun -np 2 -H localhost:2 python train.py           # two processes, here

Every process ("rank") holds the whole model and works on its own share of the images. Horovod averages the gradients.
A run continues after the newest checkpoint in its folder, where hvdcloud puts the files of the cluster's previous run.

This needs Keras 2, which is `tf.keras` up to TensorFlow 2.15, and later with tf-keras and TF_USE_LEGACY_KERAS=1. With
Keras 3 Horovod 0.28.1 does not average gradients, and does not say so.
"""

import argparse
import hashlib
import os
import statistics
import time
from pathlib import Path

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import broadcast_variables
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data():
    """The 1,797 digits, four fifths to train on, one fifth to test: the same split on every rank."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis].astype("float32") - 4.9) / 6.0  # by mean and deviation
    train, test = train_test_split(np.arange(len(images)), test_size=0.2, stratify=digits.target, random_state=0)
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def build_model(rate):
    """Without batch normalisation: Horovod averages gradients, and each rank would keep running averages of its own."""
    model = tf.keras.Sequential([tf.keras.layers.Input((8, 8, 1))])
    model.add(tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"))
    for _ in range(2):
        model.add(tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"))
        model.add(tf.keras.layers.MaxPooling2D(2))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dropout(0.5))
    model.add(tf.keras.layers.Dense(10, activation="softmax"))
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=0.9))
    optimizer.build(model.trainable_variables)  # a checkpoint may have values for its momentum
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def save_checkpoint(folder, epoch, model):
    """Under another name first, then renamed: even if this process dies meanwhile, no reader sees half a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "unfinished.keras")
    (folder / "unfinished.keras").replace(folder / f"checkpoint-{epoch:03d}.keras")


class Report(tf.keras.callbacks.Callback):
    """After each epoch a checkpoint, and a line with the images that all ranks together took per second."""

    def __init__(self, folder, images, epochs):
        super().__init__()
        self.folder, self.images, self.epochs, self.speeds = folder, images, epochs, []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.speeds.append(self.images / (time.perf_counter() - self.began))

    def on_epoch_end(self, epoch, logs):
        save_checkpoint(self.folder, epoch + 1, self.model)
        said = f"loss {logs['loss']:.4f}, accuracy {logs['val_accuracy']:.3f}, {self.speeds[-1]:.0f} images/s"
        print(f"epoch {epoch + 1:2d}/{self.epochs}: {said}", flush=True)


def resume(folder, model):
    """Bring rank 0 to the state of the newest checkpoint; returns the epochs done. The other ranks get weights and
    momentum from BroadcastGlobalVariablesCallback, and the learning rate here."""
    done, found = 0, sorted(folder.glob("checkpoint-*.keras"))
    if hvd.rank() == 0 and found:
        # In the file, the optimizer's class is one of Horovod's, made of this one.
        saved = tf.keras.models.load_model(found[-1], custom_objects={"SGD": tf.keras.optimizers.SGD})
        model.set_weights(saved.get_weights())
        model.optimizer.set_weights([variable.numpy() for variable in saved.optimizer.variables])
        model.optimizer.learning_rate.assign(saved.optimizer.learning_rate)
        done = int(found[-1].stem.removeprefix("checkpoint-"))
        print(f"resumed from {found[-1].name}: {done} epochs are done", flush=True)
    rate = model.optimizer.learning_rate
    rate.assign(hvd.broadcast(rate.numpy(), root_rank=0, name="learning_rate"))
    return int(hvd.broadcast(done, root_rank=0, name="epochs_done"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="train up to this epoch, resumed ones included")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and per rank")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=int, default=3, help="epochs until that product is reached")
    options = parser.parse_args()
    folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "checkpoints"))
    hvd.init()
    tf.get_logger().setLevel("ERROR")  # the callback that broadcasts is slower than a step: no need to warn
    tf.keras.utils.set_random_seed(1 + hvd.rank())
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")  # one GPU per process
    (images, labels), (test_images, test_labels) = load_data()
    # Equally many images for each rank, which keeps their steps in pace: an epoch takes size() times fewer steps.
    # Programs in which every rank goes through all images divide the number of epochs by size() instead.
    share = len(images) // hvd.size()
    mine, test = slice(hvd.rank(), share * hvd.size(), hvd.size()), slice(hvd.rank(), None, hvd.size())
    rate = options.lr * hvd.size()  # a step averages over size() batches, so it may be size() times as long
    model = build_model(rate)
    first = resume(folder, model)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # all ranks start with the weights of rank 0
        hvd.callbacks.MetricAverageCallback(),  # before all callbacks that look at metrics: ranks have to agree on them
        # The scaled rate is too large at the start, when the weights still change quickly (arXiv:1706.02677).
        hvd.callbacks.LearningRateWarmupCallback(rate, options.warmup_epochs, momentum_correction=False),
        tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2),
    ]
    ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
    report = Report(folder, share * hvd.size(), options.epochs)
    if hvd.rank() == 0:
        print(f"training on {len(images)} images, testing on {len(test_images)}, {ranks}", flush=True)
        callbacks += [report, tf.keras.callbacks.TensorBoard(folder / "tensorboard", write_graph=False)]
    tests = (test_images[test], test_labels[test])
    how = {"validation_data": tests, "initial_epoch": first, "epochs": options.epochs}
    model.fit(images[mine], labels[mine], options.batch_size, callbacks=callbacks, verbose=0, **how)
    if first >= options.epochs:
        broadcast_variables(model.variables, root_rank=0)  # there was no step after which the callback did it
    right = float((model.predict(tests[0], verbose=0).argmax(axis=1) == tests[1]).sum())
    correct, total = hvd.allreduce([right, float(len(tests[1]))], name="test", op=hvd.Sum)
    checksum = hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).digest()
    if len(np.unique(hvd.allgather([list(checksum)], name="checksum"), axis=0)) > 1:
        raise SystemExit("the weights are not the same on all ranks: something is set up wrongly")
    speeds = report.speeds
    pace = f"{statistics.median(speeds):.0f} images/s" if speeds else "nothing left to train (--fresh starts empty)"
    if hvd.rank() == 0:
        print(f"weights are equal on {ranks}", flush=True)
        print(f"final: accuracy {correct / total:.3f}, {pace}, {ranks}", flush=True)


if __name__ == "__main__":
    main()
