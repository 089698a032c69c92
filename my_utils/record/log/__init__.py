"""The text log of a run, and the outputs of its rows and files."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .handlers import FlushingFileHandler
    from .logger import GlobalLogger, SingletonMeta, get_global_logger

__all__ = ["FlushingFileHandler", "GlobalLogger", "SingletonMeta", "get_global_logger"]

__getattr__, __dir__ = lazy_names(
    __name__, __all__, "record.log.logger", {"FlushingFileHandler": "record.log.handlers"}
)
