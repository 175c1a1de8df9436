"""Samples where nvidia-smi is a script that answers, hangs or finds nothing."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from hvdcloud.node.monitor.sample import (
    GpuReader,
    Sensors,
)


def test_a_sample_has_rates_from_the_second_on() -> None:
    sensors = Sensors(GpuReader("/nowhere/nvidia-smi"), interface="lo")
    first = sensors.read()
    assert not first.keys() & {"cpu", "received", "sent"}
    assert 0 < first["memory"] < first["memory_total"]
    assert first["trouble"] == "nvidia-smi cannot be started: No such file or directory"
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as connection:
        connection.sendall(bytes(100_000))
        time.sleep(0.1)
        second = sensors.read()
    assert 0 <= second["cpu"] <= 100
    assert second["received"] > 0
    assert second["sent"] > 0


def test_an_interface_that_is_not_there_has_no_rates() -> None:
    sensors = Sensors(GpuReader("/nowhere"), interface="eth9")
    sensors.read()
    assert set(sensors.read()) == {"t", "cpu", "memory", "memory_total", "trouble"}


def test_a_hanging_nvidia_smi_is_given_up_and_asked_again_much_later(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    # What it leaves behind holds the pipe, as a process that is stuck in the driver does.
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nsleep 60 & wait\n")
    program.chmod(0o755)
    reader = GpuReader(str(program), seconds=0.3)
    assert reader.read() == []
    assert reader.read() == []
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
