"""Times, traces, captures, checks and compares PyTorch training runs.

The names below load on first use, so that `import my_utils` costs a few milliseconds and brings
neither torch nor numpy.

>>> import my_utils
>>> my_utils.__version__
'0.1.0'
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from .csv2trace import csv_to_trace
    from .logger import GlobalLogger, get_global_logger
    from .utils import ChecksumUtils, DebuggingEvent, MyTimer, NoOpMyTimer, global_timer
    from .utils import DebugLayer as DebugLayer

__version__ = "0.1.0"

# DebugLayer is not in it: `from my_utils import *` would bring torch.
__all__ = [
    "ChecksumUtils",
    "DebuggingEvent",
    "GlobalLogger",
    "MyTimer",
    "NoOpMyTimer",
    "__version__",
    "csv_to_trace",
    "get_global_logger",
    "global_timer",
]

_HOMES = {
    "ChecksumUtils": "utils",
    "DebugLayer": "utils",
    "DebuggingEvent": "utils",
    "GlobalLogger": "logger",
    "MyTimer": "utils",
    "NoOpMyTimer": "utils",
    "csv_to_trace": "csv2trace",
    "get_global_logger": "logger",
    "global_timer": "utils",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())
