"""Samples where nvidia-smi is a script that answers, hangs or finds nothing."""

from __future__ import annotations

import time
from pathlib import Path

from hvdcloud.node.monitor.sample import (
    GpuReader,
    Sensors,
)
from tests.support.proc_files import MEMINFO, NET, STAT

STAT_LATER = "cpu  1100 50 350 8040 210 10 40 25 7 0\n"


def test_a_sample_has_rates_from_the_second_on(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "net/dev").write_text(NET)
    sensors = Sensors(GpuReader("/nowhere/nvidia-smi"), interface="eth0", proc=tmp_path)
    first = sensors.read()
    assert "cpu" not in first
    assert first["memory"] == 2_000_000 * 1024
    assert first["trouble"] == "nvidia-smi cannot be started: No such file or directory"
    (tmp_path / "stat").write_text(STAT_LATER)
    (tmp_path / "net/dev").write_text(NET.replace("3000000", "3500000"))
    second = sensors.read()
    assert second["cpu"] == 75.0
    assert second["received"] == 0
    assert second["sent"] > 0


def test_a_machine_without_proc_is_sampled_all_the_same(tmp_path: Path) -> None:
    sensors = Sensors(GpuReader("/nowhere"), interface="eth0", proc=tmp_path)
    sensors.read()
    assert set(sensors.read()) <= {"t", "received", "sent", "trouble"}


def test_a_hanging_nvidia_smi_is_given_up_and_asked_again_much_later(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    # What it leaves behind holds the pipe, as a process that is stuck in the driver does.
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nsleep 60 & wait\n")
    program.chmod(0o755)
    reader = GpuReader(str(program), seconds=0.3)
    began = time.monotonic()
    assert reader.read() == []
    assert reader.read() == []
    assert time.monotonic() - began < 20
    assert reader.trouble == "nvidia-smi did not answer within 0.3 s"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_an_nvidia_smi_without_gpus_is_not_asked_every_time(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    reader = GpuReader(str(program))
    assert [reader.read(), reader.read()] == [[], []]
    assert reader.trouble == "nvidia-smi said nothing of any GPU (exit code 6)"
    assert (tmp_path / "asked").read_text() == "asked\n"
