"""What is read from a training script without running it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.init import init_script
from hvdcloud.training_script import TrainingScript, read_script, with_windows_line_ends
from tests.support.configs import load_config


def read(folder: Path, text: str, others: dict[str, str] | None = None) -> TrainingScript:
    for name, content in {"my_train.py": text, **(others or {})}.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return read_script(folder / "my_train.py")


@pytest.mark.parametrize(
    ("text", "framework", "because"),
    [
        ("import os\nimport torch.nn as nn", "torch", "my_train.py:2 imports torch.nn"),
        ("from tensorflow import keras", "tensorflow", "my_train.py:1 imports tensorflow"),
        ("def main():\n    import keras", "tensorflow", "my_train.py:2 imports keras"),
        ("import tensorflow\nimport horovod.torch as hvd", "torch", "my_train.py:2 imports horovod.torch"),
        ("from horovod import torch as hvd", "torch", "my_train.py:1 imports horovod.torch"),
        ("import horovod.keras", "tensorflow", "my_train.py:1 imports horovod.keras"),
        ("import sklearn\n'import torch'", None, ""),
    ],
)
def test_the_framework_is_what_the_script_imports(
    tmp_path: Path, text: str, framework: str | None, because: str
) -> None:
    found = read(tmp_path, text)
    assert (found.framework, found.because, found.other_framework) == (framework, because, None)


@pytest.mark.parametrize(
    ("text", "launcher", "because"),
    [
        ("import horovod.torch as hvd\nimport torch.distributed", "horovod", "my_train.py:1 imports horovod.torch"),
        ("import torch\nimport torch.distributed as dist", "torchrun", "my_train.py:2 imports torch.distributed"),
        ("from torch import distributed", "torchrun", "my_train.py:1 imports torch.distributed"),
        (
            "import torch.nn as nn\nnn.parallel.DistributedDataParallel(net)",
            "torchrun",
            "my_train.py:2 uses torch.nn.par",
        ),
        ("import torch\ntorch.distributed.barrier()", "torchrun", "my_train.py:2 uses torch.distributed.barrier"),
        (
            "from torch.nn.parallel import DistributedDataParallel",
            "torchrun",
            "my_train.py:1 imports torch.nn.parallel.Dis",
        ),
        ("import lightning as L", "torchrun", "my_train.py:1 imports lightning"),
        ("import pytorch_lightning.callbacks", "torchrun", "my_train.py:1 imports pytorch_lightning.callbacks"),
        ("from accelerate import Accelerator", "torchrun", "my_train.py:1 imports accelerate"),
        ("import deepspeed", "torchrun", "my_train.py:1 imports deepspeed"),
        ("from transformers import Seq2SeqTrainer", "torchrun", "my_train.py:1 imports transformers.Seq2SeqTrainer"),
        ("import transformers as t\nt.Trainer(m)", "torchrun", "my_train.py:2 uses transformers.Trainer"),
        ("import jax.numpy as jnp", "each", "my_train.py:1 imports jax.numpy"),
        ("import lightning\nTrainer(strategy='horovod')", "torchrun", "my_train.py:1 imports lightning"),
        ("import torch\nimport torch.nn.parallel", None, ""),
        ("import torch\nfrom torch.utils.data import DistributedSampler", None, ""),
        ("import torch\nfrom transformers import AutoModel", None, ""),
        ("import torch\n'import horovod'  # torch.distributed", None, ""),
        ("import torch\ndistributed.barrier(); net.torch.distributed", None, ""),
    ],
)
def test_the_launcher_is_what_the_script_is_written_for(
    tmp_path: Path, text: str, launcher: str | None, because: str
) -> None:
    found = read(tmp_path, text)
    first, said = next(iter(found.launchers.items()), (None, ""))
    assert (first, said[: len(because)]) == (launcher, because)
    assert found.framework == (None if launcher == "each" else "torch")


def test_the_launcher_is_also_found_in_the_projects_own_files(tmp_path: Path) -> None:
    own = {"lib/__init__.py": "", "lib/ranks.py": "import torch.distributed\n", "jax.py": "x = 1\n"}
    found = read(tmp_path, "import torch\nimport lib.ranks\nimport jax\njax.x", own)
    assert found.launchers == {"torchrun": "lib/ranks.py:1 imports torch.distributed"}


@pytest.mark.parametrize(
    ("text", "needs_it"),
    [
        ("import horovod.torch", True),
        ("import helper", True),
        ("try:\n    import horovod.torch\nexcept ImportError:\n    pass", False),
        ("if True:\n    import horovod.torch", False),
        ("def main():\n    import helper", False),
    ],
)
def test_a_script_needs_horovod_where_it_always_imports_it(tmp_path: Path, text: str, *, needs_it: bool) -> None:
    found = read(tmp_path, text, {"helper.py": "import horovod.torch as hvd\n"})
    assert ("horovod" in found.launchers, found.needs_horovod) == (True, needs_it)


JOINS = (
    "import torch.distributed as dist\ndef main(rank):\n    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
)


@pytest.mark.parametrize(
    ("text", "spawns"),
    [
        (
            f"{JOINS}import torch.multiprocessing as mp\nmp.spawn(main)",
            "my_train.py:5 calls torch.multiprocessing.spawn",
        ),
        (f"{JOINS}from torch.multiprocessing import spawn as go\ngo(main)", "my_train.py:5 calls torch.multiproc"),
        (f"{JOINS}from multiprocessing import Process\nProcess(main)", "my_train.py:5 calls multiprocessing.Process"),
        (
            "import torch\ntorch.distributed.init_process_group('gloo', init_method='tcp://localhost:29500')",
            "my_train.py:2 joins its ranks at tcp://localhost:29500",
        ),
        (f"{JOINS}import torch.multiprocessing as mp\nmp.spawn(main) if 'LOCAL_RANK' not in environ else main(0)", ""),
        ("import torch.distributed as d\nd.init_process_group()\nimport multiprocessing as m\nm.Process(load)", ""),
        ("import torch.multiprocessing as mp\nmp.spawn(prepare_data)", ""),
        ("import torch.distributed as d\nd.init_process_group('gloo', init_method='tcp://10.0.0.2:29500')", ""),
    ],
    ids=["spawn", "its alias", "Process", "localhost", "reads LOCAL_RANK", "loads data", "no ranks", "another host"],
)
def test_a_script_that_starts_its_own_ranks_is_known(tmp_path: Path, text: str, spawns: str) -> None:
    found = read(tmp_path, text).spawns
    assert (found[: len(spawns)], bool(found)) == (spawns, bool(spawns))


@pytest.mark.parametrize("word", ["horovod", "horovod.torch", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"])
def test_a_script_that_names_horovod_may_run_under_it_too(tmp_path: Path, word: str) -> None:
    found = read(tmp_path, f"import torch.distributed\nwhere = {word!r}")
    assert list(found.launchers.items())[1:] == [("horovod", f"my_train.py:2 names {word}")]


def test_nothing_is_executed(tmp_path: Path) -> None:
    read(tmp_path, "import torch\nopen('ran', 'w')\nraise SystemExit(3)")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"my_train\.py:2 is not Python"):
        read(tmp_path, "import torch\nprint 'x'\n")
    with pytest.raises(UsageError, match=r"none\.py cannot be read: No such file"):
        read_script(tmp_path / "none.py")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"bytes\.py.* is not Python"):
        read_script(tmp_path / "bytes.py")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("./train.sh", "./train.sh"),
        ("train.sh", "train.sh"),
        ("bash -e train.sh --fast", "train.sh"),
        ("SEED=1 ./train.sh", "./train.sh"),
        ("bash plain.sh", "plain.sh"),
        ("./train.py", "./train.py"),
        ("python train.py", None),
        ("python3.11 -u ./train.py config.sh", None),
        ("torchrun train.py", None),
        ("bash unix.sh", None),
        ("./missing.sh", None),
        ("sh -c 'echo \0'", None),
    ],
)
def test_a_script_with_windows_line_ends_is_found_where_linux_cannot_run_it(
    tmp_path: Path, command: str, named: str | None
) -> None:
    files = {
        "train.sh": "#!/bin/bash\r\npython train.py\r\n",
        "plain.sh": "python train.py\r\n",
        "config.sh": "A=1\r\n",
        "train.py": "#!/usr/bin/env python3\r\nimport torch\r\n",
        "unix.sh": "#!/bin/bash\npython train.py\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    assert with_windows_line_ends(shlex.split(command), tmp_path) == named


def test_a_script_with_relative_imports_runs_as_a_part_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "net.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text("import torch\nfrom .net import x\n")
    init_script(tmp_path, tmp_path / "pkg" / "train.py")
    assert load_config(tmp_path / "hvdcloud.yaml", environ={}).run.command == "python -m pkg.train"


@pytest.mark.parametrize(
    ("text", "launcher", "framework", "said"),
    [
        (
            "import tensorflow\nimport lightning",
            "torchrun",
            "torch",
            [
                "image.framework is torch: t.py:2 imports lightning",
                "t.py imports tensorflow too; the image has one framework",
                "run.launcher is torchrun: t.py:2 imports lightning",
                "t.py imports lightning: list their packages in requirements.txt",
            ],
        ),
        (
            f"import torch\n{JOINS}import torch.multiprocessing as mp\nmp.spawn(main)",
            "torchrun",
            "torch",
            [
                "image.framework is torch: t.py:1 imports torch",
                "run.launcher is torchrun: t.py:2 imports torch.distributed",
                "t.py:6 calls torch.multiprocessing.spawn, which torchrun does itself: take it out and read LOCAL_RANK",
            ],
        ),
    ],
    ids=["lightning", "spawn"],
)
def test_init_script_writes_the_launcher_and_says_what_decided(
    tmp_path: Path, text: str, launcher: str, framework: str, said: list[str]
) -> None:
    (tmp_path / "t.py").write_text(text)
    assert init_script(tmp_path, tmp_path / "t.py").notes == said
    config = load_config(tmp_path / "hvdcloud.yaml", environ={})
    assert (config.run.launcher, config.image.framework) == (launcher, framework)


def test_the_launcher_is_the_scripts_whatever_the_template(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import jax")
    file = tmp_path / "hvdcloud.yaml"
    for template in ("ddp", "bench", "torch"):
        init_script(tmp_path, tmp_path / "t.py", template=template)
        assert load_config(file, environ={}).run.launcher == "each"
        file.unlink()
