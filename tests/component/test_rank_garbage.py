"""What a rank's Python leaves out when it looks for garbage, and that all else is found and written: a real Python with
what the node program puts before ranks' programs. The framework is a stand-in, whose objects refer to each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hvdcloud.node.rank_hook import sitecustomize

FRAMEWORK = """
import codecs
import gc

if gc.get_threshold() == (10, 2, 2):
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))

class Module:
    pass

class Ring:
    def __init__(self):
        self.own = self

rings = [Ring() for _ in range(1000)]
codecs.register_error("rings", lambda error, rings=rings: ("", 0))
"""
WRITER = """
class Writer:
    def __init__(self, name):
        self.own = self
        self.file = open(name, "w")
        self.file.write("begun ")

    def __del__(self):
        self.file.write("ended")
        self.file.close()
"""
"""Of which only a search for garbage finds that it is not needed any more."""


ONCE, ALWAYS = [False, True, False, False], [True, True, True, True]
"""Which of the four searches at Python's end are through what the framework has made."""


def run(folder: Path, program: str, *, framework: str = FRAMEWORK, name: str = "torch") -> tuple[str, str]:
    """What a program writes on its standard streams that runs as a rank's does, in this folder."""
    (folder / f"{name}.py").write_text(framework)
    (folder / "train.py").write_text(textwrap.dedent(program))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(sitecustomize.__file__).parent), str(folder)]),
        sitecustomize.FILE_VARIABLE: str(folder / "waits.json"),
    }
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", sitecustomize.FRAMEWORKS)
def test_what_a_framework_makes_while_it_loads_is_never_looked_through(tmp_path: Path, name: str) -> None:
    program = f"""
        import gc, importlib.util, weakref
        gc.set_threshold(10, 2, 2)
        # Libraries ask first whether there is one.
        assert importlib.util.find_spec("{name}") is not None
        import {name} as framework

        while_it_loaded = len(framework.collections)
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
        assert not any(isinstance(each, framework.Ring) for each in gc.get_objects())
        own = weakref.ref(framework.Ring())
        gc.collect()
        print(while_it_loaded, own())
    """
    assert run(tmp_path, program, name=name) == ("0 None\n", "")


def test_what_a_program_has_not_closed_is_written_at_its_end(tmp_path: Path) -> None:
    program = f"""
        {textwrap.indent(WRITER, " " * 8)}
        import json

        early = Writer("early")
        file = open("early-file", "w")
        file.write("begun ended")
        import torch

        Writer("garbage")
        late = Writer("late")
        torch.Module.writer = Writer("of-the-framework")
        json.writer = Writer("of-a-library")
    """
    assert run(tmp_path, program) == ("", "")
    for name in ("early", "early-file", "garbage", "late", "of-the-framework", "of-a-library"):
        assert (tmp_path / name).read_text() == "begun ended", name


@pytest.mark.parametrize(
    ("left", "whole"),
    [
        ("", ONCE),
        ("reader = open(__file__)", ONCE),
        ("log = open('log', 'w')", ALWAYS),
        ("import subprocess\nfilter = subprocess.Popen(['true'], stdin=subprocess.PIPE)", ALWAYS),
        ("import socket\nends = socket.socketpair()", ALWAYS),
        ("import socket\nends = [each.setblocking(False) or each for each in socket.socketpair()]", ONCE),
    ],
    ids=["nothing", "a file that is read", "a file that is written", "a pipe", "a connection", "one of a library"],
)
def test_at_its_end_all_is_looked_through_once_unless_something_may_have_to_be_written(
    tmp_path: Path, left: str, whole: list[bool]
) -> None:
    program = f"""
        import atexit, gc
        atexit.register(gc.set_debug, gc.DEBUG_STATS)
        import torch
        {textwrap.indent(left, " " * 8).strip()}
    """
    _, said = run(tmp_path, program)
    searches = re.findall(r"collecting generation 2.*\n.*in each generation: (\d+) (\d+) (\d+)", said)
    assert [sum(map(int, objects)) > 2000 for objects in searches] == whole


def test_what_a_program_with_searches_switched_off_has_not_closed_is_written_at_its_end(tmp_path: Path) -> None:
    program = """
        import gc
        import torch
        gc.disable()
        def train():
            log.write("a step")
        log = open("log", "w")
        train()
        gc.collect()
    """
    assert run(tmp_path, program) == ("", "")
    assert (tmp_path / "log").read_text() == "a step"


def test_what_was_made_before_the_framework_writes_into_a_file_that_was_opened_after_it(tmp_path: Path) -> None:
    program = """
        class Log:
            def __del__(self):
                self.file.write("ended")
                self.file.close()

        log = Log()
        import torch
        log.file = open("log", "w")
        log.file.write("begun ")
    """
    assert run(tmp_path, program) == ("", "")
    assert (tmp_path / "log").read_text() == "begun ended"


@pytest.mark.parametrize(
    "imports",
    ["def main():\n    import tensorflow\nmain()", "import torch\nown = made()\nimport tensorflow"],
    ids=["in a function", "after another one"],
)
def test_what_a_program_that_is_at_work_has_made_is_freed_though_a_framework_is_loaded_then(
    tmp_path: Path, imports: str
) -> None:
    (tmp_path / "tensorflow.py").write_text(FRAMEWORK.replace('"rings"', '"more-rings"'))
    program = f"""
        import gc, weakref

        class Model:
            def __init__(self):
                self.own = self

        made, own = Model, Model()
        {textwrap.indent(imports, " " * 8).strip()}
        own = weakref.ref(own)
        gc.collect()
        print(own())
    """
    assert run(tmp_path, program) == ("None\n", "")


def test_a_program_without_room_for_another_descriptor_ends_as_ever(tmp_path: Path) -> None:
    program = """
        import os, resource
        import torch
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    """
    assert run(tmp_path, program) == ("", "")


def test_a_framework_that_fails_to_load_fails_as_ever(tmp_path: Path) -> None:
    program = """
        import gc
        try:
            import torch
        except ImportError as error:
            print(error, gc.isenabled(), gc.get_freeze_count())
    """
    failing = "raise ImportError('libcudart.so')"
    assert run(tmp_path, program, framework=failing) == ("libcudart.so True 0\n", "")
