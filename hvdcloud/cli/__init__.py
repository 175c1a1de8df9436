"""The command line: parse, call one lifecycle function, render its result."""

import gc

# What modules make while they load stays: looking for garbage in it took a sixth of the time that a command needs to
# start.
gc.set_threshold(50_000, 20, 100)
