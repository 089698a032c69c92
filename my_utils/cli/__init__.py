"""The command `my_utils`; `python -m my_utils` is the same."""

from __future__ import annotations

from ..core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import main

__all__ = ["main"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "cli.command")
