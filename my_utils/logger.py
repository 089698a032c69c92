"""Compatibility module; the code is in `my_utils.record.log`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .record.log.handlers import FlushingFileHandler
    from .record.log.logger import GlobalLogger, SingletonMeta, get_global_logger

__all__ = ["FlushingFileHandler", "GlobalLogger", "SingletonMeta", "get_global_logger"]

__getattr__, __dir__ = lazy_names(__name__)
