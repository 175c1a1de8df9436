"""Importing this loads what commands use: once, in the process of which commands are forked."""

from tests.support.commands import load

load()
