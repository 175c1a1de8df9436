"""What a node says of its processors, its memory, its network and its GPUs."""

from __future__ import annotations

from hvdcloud.node.monitor.sample import parse_gpus

MIB = 1 << 20


def test_gpus_say_what_they_measure_and_nothing_of_what_they_do_not() -> None:
    output = (
        "0, 87, 30210, 81559, 61, 402.55\n"
        "1, [N/A], 512, 81559, 40, [N/A]\n"
        "2, [Not Supported], [Not Supported], [Not Supported], [Unknown Error], [GPU requires reset]\n"
        "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.\n"
    )
    assert parse_gpus(output) == [
        {"index": 0, "utilization": 87, "memory": 30210 * MIB, "memory_total": 81559 * MIB, "temperature": 61,
         "power": 402.6},
        {"index": 1, "memory": 512 * MIB, "memory_total": 81559 * MIB, "temperature": 40},
        {"index": 2},
    ]  # fmt: skip
    assert parse_gpus("No devices were found\n") == []
