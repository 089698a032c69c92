"""`LOGGER`: a separate logger for scripts that port or build, with level and place in each line.

It writes to standard error and passes nothing on to the root logger; the level is INFO unless the
environment variable MUSA_LOG_LEVEL names another. Thread-safe, as the loggers of `logging` are.

>>> from my_utils.musa.logger_util import LOGGER
>>> LOGGER.name, LOGGER.propagate
('my_utils.musa', False)
"""

from __future__ import annotations

import logging
import os

from ..record.log.handlers import ConsoleHandler

__all__ = ["LOGGER"]

FORMAT = "%(asctime)s | %(levelname)s | %(filename)s:%(lineno)d | %(message)s"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _made() -> logging.Logger:
    logger = logging.getLogger("my_utils.musa")
    if not logger.handlers:
        handler = ConsoleHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
    level = os.environ.get("MUSA_LOG_LEVEL", "INFO").upper()
    logger.setLevel(level if level in LEVELS else "INFO")
    logger.propagate = False
    return logger


LOGGER = _made()
