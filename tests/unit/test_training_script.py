"""What is read from a training script without running it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.init import init_script
from hvdcloud.training_script import TrainingScript, read_script, training_scripts, with_windows_line_ends


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


def test_the_projects_own_files_are_read_too(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "from nets import small\nimport nets.data",
        {
            "nets/__init__.py": "",
            "nets/small.py": "from .layers import conv\nimport einops",
            "nets/layers.py": "import torch\nimport pandas, numpy, yaml, json\nfrom . import small\nimport my_train",
        },
    )
    assert found.because == "nets/layers.py:1 imports torch"
    assert found.packages == ("einops", "pandas")


def test_what_a_script_lacks_is_seen(tmp_path: Path) -> None:
    found = read(tmp_path, "import torch, tensorflow")
    assert (found.uses_horovod, found.other_framework) == (False, "tensorflow")
    assert read(tmp_path, "import horovod.torch").uses_horovod


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


def test_training_scripts_are_those_with_a_framework(tmp_path: Path) -> None:
    for name, text in {"a": "import torch", "train": "import keras", "setup": "import os", "old": "print 'x'"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert [file.name for file in training_scripts(tmp_path)] == ["train.py", "a.py"]
    assert training_scripts(tmp_path / "nowhere") == []


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


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfimport torch\r\nimport horovod.torch as hvd\r\n",
        b"# -*- coding: latin-1 -*-\nimport torch\nimport horovod.torch as hvd\nprint('caf\xe9')\n",
    ],
)
def test_a_source_is_read_in_the_encoding_that_python_takes(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "train.py").write_bytes(source)
    assert read_script(tmp_path / "train.py").framework == "torch"


def test_what_is_in_the_project_is_not_missing(tmp_path: Path) -> None:
    for name in ("mylib/net.py", "src/core/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("import pandas\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("import torch, core\nfrom mylib.net import net\n")
    assert read_script(tmp_path / "scripts" / "train.py", project=tmp_path).packages == ("pandas",)


def test_a_notebook_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "note.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="is a notebook") as raised:
        read_script(tmp_path / "note.ipynb")
    assert raised.value.hint.startswith("jupyter nbconvert --to script ")


def test_a_script_with_relative_imports_runs_as_a_part_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "net.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text("import torch\nfrom .net import x\n")
    made = init_script(tmp_path, tmp_path / "pkg" / "train.py")
    assert made.choices[0].value == "python -m pkg.train"
