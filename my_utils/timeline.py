"""Compatibility module; the code is in `my_utils.trace`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .trace.timeline import Span, find_csvs, main, plot_timeline, read_spans

__all__ = ["Span", "find_csvs", "main", "plot_timeline", "read_spans"]

__getattr__, __dir__ = lazy_names(__name__)

if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
