"""Fixtures of the contract tests."""

from __future__ import annotations

from tests.support.terraform import place

__all__ = ["place"]
