"""Trains a small GPT on two ranks, and shows where the time goes."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import main, run

__all__ = ["main", "run"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "cli.demo.command")
