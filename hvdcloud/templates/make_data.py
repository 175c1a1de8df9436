"""Writes a data set of drawn digits into data/: images in shards, as large data sets are kept. Nothing is downloaded.

    python3 make_data.py                 # 16,384 images to train on, 2,048 to test, in a few seconds

A shard is a file of records; a record is one byte for the digit, then 16 x 16 bytes for its pixels. Only Python's
standard library is needed, and the same files come out each time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

SIZE = 16  # pixels along a side
IMAGES_PER_SHARD = 64
# Strokes of a digit as on a calculator, between points of a unit square, from (0, 0) at the top left.
STROKES = {
    "top": ((0, 0), (1, 0)),
    "upper left": ((0, 0), (0, 0.5)),
    "upper right": ((1, 0), (1, 0.5)),
    "middle": ((0, 0.5), (1, 0.5)),
    "lower left": ((0, 0.5), (0, 1)),
    "lower right": ((1, 0.5), (1, 1)),
    "bottom": ((0, 1), (1, 1)),
}
LEFT_OUT = {  # by each digit
    0: ["middle"],
    1: ["top", "upper left", "middle", "lower left", "bottom"],
    2: ["upper left", "lower right"],
    3: ["upper left", "lower left"],
    4: ["top", "lower left", "bottom"],
    5: ["upper right", "lower left"],
    6: ["upper right"],
    7: ["upper left", "middle", "lower left", "bottom"],
    8: [],
    9: ["lower left"],
}


def draw(digit: int, random: Random) -> bytes:
    """The pixels of a digit: at another place, size, slant and brightness each time, on noise."""
    pixels = bytearray(value >> 2 for value in random.randbytes(SIZE * SIZE))
    width, height = random.uniform(4, 7), random.uniform(7, 11)
    slant = random.uniform(-2, 2)
    left, top = random.uniform(2.5, 13 - width), random.uniform(1.5, 14 - height)
    ink = random.randrange(140, 256)
    for name, ((x0, y0), (x1, y1)) in STROKES.items():
        if name in LEFT_OUT[digit]:
            continue
        for step in range(13):
            part = step / 12
            x, y = x0 + (x1 - x0) * part, y0 + (y1 - y0) * part
            column, row = round(left + width * x + slant * (0.5 - y)), round(top + height * y)
            if 0 <= column < SIZE and 0 <= row < SIZE:
                pixels[row * SIZE + column] = ink
    return bytes(pixels)


def write_shards(folder: Path, shards: int, random: Random) -> None:
    """Under another name first, then renamed: no reader ever sees half a shard."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        digits = [random.randrange(10) for _ in range(IMAGES_PER_SHARD)]
        path = folder / f"shard-{number:04d}.bin"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(b"".join(bytes([digit]) + draw(digit, random) for digit in digits))
        unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Writes drawn digits in shards.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "data", help="where to")
    parser.add_argument("--shards", type=int, default=256, help="files of 64 images to train on")
    options = parser.parse_args()
    tests = max(1, options.shards // 8)
    write_shards(options.folder / "train", options.shards, Random(1))
    write_shards(options.folder / "test", tests, Random(2))
    images, tested = options.shards * IMAGES_PER_SHARD, tests * IMAGES_PER_SHARD
    print(f"wrote {images:,} images to train on and {tested:,} to test into {options.folder}")


if __name__ == "__main__":
    main()
