"""Epochs and steps are read from what training programs really print, and from nothing else."""

from __future__ import annotations

import pytest

from hvdcloud.runs.progress import LogReader, Position


def read(text: str) -> Position | None:
    reader = LogReader(elastic=False)
    reader.feed("".join(f"[0] {line}\n" for line in text.splitlines()).encode())
    return reader.position


# What `init --template torch` writes.
TEMPLATE = """\
training on 1437 images, testing on 360, 2 ranks, cpu
epoch  1/12: loss 1.842, accuracy 0.714, 5211 images/s
epoch  2/12: loss 0.902, accuracy 0.869, 5302 images/s
epoch 10/12: loss 0.104, accuracy 0.967, 5299 images/s
epoch 11/12: loss 0.101, accuracy 0.969, 5287 images/s
epoch 12/12: loss 0.098, accuracy 0.972, 5290 images/s
final: accuracy 0.972, 5290 images/s, 2 ranks
"""
RESUMED_TEMPLATE = """\
resumed from checkpoint-007.pt: 7 epochs are done
epoch  8/12: loss 0.204, accuracy 0.947, 5211 images/s
epoch  9/12: loss 0.177, accuracy 0.953, 5302 images/s
"""
# PyTorch's MNIST example under Horovod.
TORCH_MNIST = """\
Train Epoch: 1 [0/30000 (0%)]\tLoss: 2.341234
Train Epoch: 1 [640/30000 (2%)]\tLoss: 2.318492
Train Epoch: 2 [29440/30000 (98%)]\tLoss: 0.211872
Test set: Average loss: 0.0712, Accuracy: 97.80%
Train Epoch: 3 [0/30000 (0%)]\tLoss: 0.181232
"""
TORCH_LANGUAGE_MODEL = """\
| epoch   1 |   200/ 2323 batches | lr 20.00 | ms/batch  9.51 | loss  7.64 | ppl  2081.48
| end of epoch   1 | time: 25.61s | valid loss  5.77 | valid ppl   321.26
| epoch   2 |   200/ 2323 batches | lr 20.00 | ms/batch  9.40 | loss  5.99 | ppl   398.66
"""
KERAS = """\
Epoch 1/4
938/938 ━━━━━━━━━━━━━━━━━━━━ 4s 4ms/step - accuracy: 0.8621 - loss: 0.4771
Epoch 2/4
938/938 ━━━━━━━━━━━━━━━━━━━━ 4s 4ms/step - accuracy: 0.9621 - loss: 0.1271

Epoch 2: val_loss improved from 0.31 to 0.18, saving model to checkpoint-2.keras
Epoch 3/4
Epoch 4/4
"""
KERAS_RESUMED = """\
Epoch 7/12
 1/30 [>.............................] - ETA: 12s - loss: 0.3012
Epoch 8/12
Epoch 9/12
"""
LIGHTNING = """\
Epoch 0: 100%|██████████| 469/469 [00:05<00:00, 84.42it/s, v_num=0, train_loss=0.0712]
Epoch 1: 100%|██████████| 469/469 [00:05<00:00, 86.11it/s, v_num=0, train_loss=0.0411]
Epoch 2:  41%|████      | 192/469 [00:02<00:03, 85.22it/s, v_num=0, train_loss=0.0302]
`Trainer.fit` stopped: `max_epochs=3` reached.
"""
# Horovod's tensorflow2_mnist.py.
HOROVOD_TENSORFLOW = """\
Step #0\tLoss: 2.301123
Step #10\tLoss: 1.104122
Step #20\tLoss: 0.612122
Step #4990\tLoss: 0.012112
"""
# Horovod's pytorch_synthetic_benchmark.py.
HOROVOD_BENCHMARK = """\
Model: resnet50
Batch size: 32
Number of GPUs: 2
Running warmup...
Running benchmark...
Iter #0: 312.4 img/sec per GPU
Iter #1: 312.9 img/sec per GPU
Iter #9: 311.7 img/sec per GPU
Img/sec per GPU: 312.3 +-1.1
"""
STEPS = """\
step 1300/5000 loss 1.21
step 1400/5000 loss 1.20
step 1500/5000 loss 1.17
"""
BRACKETS = """\
2026-11-20 10:04:05 INFO [Epoch 3] [1/100] loss=0.31
2026-11-20 10:05:05 INFO [Epoch 4] [1/100] loss=0.29
"""


@pytest.mark.parametrize(
    ("text", "unit", "number", "total"),
    [
        pytest.param(TEMPLATE, "epoch", 12, 12, id="template"),
        pytest.param(RESUMED_TEMPLATE, "epoch", 9, 12, id="template, resumed"),
        pytest.param(TORCH_MNIST, "epoch", 3, None, id="torch mnist"),
        pytest.param(TORCH_LANGUAGE_MODEL, "epoch", 2, None, id="torch language model"),
        pytest.param(KERAS, "epoch", 4, 4, id="keras"),
        pytest.param(KERAS_RESUMED, "epoch", 9, 12, id="keras, resumed"),
        pytest.param(LIGHTNING, "epoch", 2, None, id="lightning"),
        pytest.param(HOROVOD_TENSORFLOW, "step", 4990, None, id="horovod tensorflow"),
        pytest.param(HOROVOD_BENCHMARK, "step", 9, None, id="horovod benchmark"),
        pytest.param(STEPS, "step", 1500, 5000, id="steps, resumed"),
        pytest.param(BRACKETS, "epoch", 4, None, id="brackets"),
    ],
)
def test_where_a_run_is_is_read(text: str, unit: str, number: int, total: int | None) -> None:
    assert read(text) == Position(unit=unit, number=number, total=total)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello from rank 0",
        "training for 12 epochs",
        "epochs: 12\nwarmup epochs = 3",
        "python train.py --epoch 3",
        "saved /checkpoints/epoch-3.pt",
        "saved model-epoch 3.pt",
        "resumed from epoch 7",
        "loading the checkpoint of epoch 7",
        "best model: epoch 7",
        "{'loss': 0.41, 'epoch': 2.98}",
        "epoch 13/12",
        "1719/1719 [==============================] - 5s 3ms/step - loss: 0.2",
    ],
)
def test_what_is_no_position_is_not_taken_for_one(text: str) -> None:
    assert read(text) is None


def reader_of(log: str, *, elastic: bool = True, piece: int = 5) -> LogReader:
    reader = LogReader(elastic=elastic)
    data = log.encode()
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    return reader


# Worker 0 was rank 0 until its node was lost; worker 2 continues from the last commit, and ends the run.
MOVED = """\
[0] world of 3: continuing at epoch 1, batch 0
[0] epoch  1/6: loss 0.9, 300 images/s
[0] epoch  2/6: loss 0.8, 310 images/s
[1] [E] Horovod background loop uncaught exception
[launcher] Process 0 exit with status code 255.
[hvdcloud] node digits-1 was lost: no heartbeat for 5 s
[2] world of 2: continuing at epoch 3, batch 10
[2] epoch  3/6: loss 0.7, 200 images/s
[2] epoch  4/6: loss 0.6, 210 images/s
[12] epoch  5/6: loss 0.5, 200 images/s
[12] epoch  6/6: loss 0.4, 400 images/s
[12] final: accuracy 0.9, 390 images/s
"""


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_the_ranks_of_an_elastic_run_tell_where_it_is_whichever_worker_prints_it(piece: int) -> None:
    reader = reader_of(MOVED, piece=piece)
    assert reader.position == Position(unit="epoch", number=6, total=6)
    assert reader.last_line == "final: accuracy 0.9, 390 images/s"
    assert reader.numbers["images/s"] == 390


def test_the_position_of_a_static_run_comes_from_rank_zero_alone() -> None:
    reader = reader_of(MOVED, elastic=False)
    assert reader.position == Position(unit="epoch", number=2, total=6)
    assert reader.last_line == "epoch  2/6: loss 0.8, 310 images/s"


def test_a_worker_that_continues_alone_from_an_earlier_commit_is_followed() -> None:
    before = [f"[0] step {step}/900" for step in range(10, 510, 10)]
    after = [f"[3] step {step}/900" for step in range(400, 470, 10)]
    reader = reader_of("\n".join([*before, *after, ""]))
    assert reader.position == Position(unit="step", number=460, total=900)
