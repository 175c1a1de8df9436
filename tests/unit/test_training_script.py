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
