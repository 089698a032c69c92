"""Trains a small GPT on two ranks, and shows where the time goes."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import main, run

__all__ = ["main", "run"]

__getattr__, __dir__ = lazy_names(__name__, {"cli.demo.command": ("main", "run")})
