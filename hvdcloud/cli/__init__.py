"""The command line: parse, call one lifecycle function, render its result."""

import gc
import sys

# What modules make while they load stays: looking for garbage in it took a sixth of the time that a command needs to
# start.
gc.set_threshold(50_000, 20, 100)
# A thread that an engine or a node has answered need not wait for another one that loads modules meanwhile.
sys.setswitchinterval(0.0005)
