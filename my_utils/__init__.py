"""Times, traces, captures, checks and compares PyTorch training runs.

The names below load on first use, so that `import my_utils` costs a few milliseconds and brings
neither torch nor numpy.

>>> import my_utils
>>> my_utils.__version__
'0.1.0'
"""

from __future__ import annotations

from .common import old_paths
from .common.faces import lazy_names

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from .checksums.batches import ChecksumUtils
    from .log.logger import GlobalLogger, get_global_logger
    from .modules.debug_layer import DebugLayer as DebugLayer
    from .stages.timers import DebuggingEvent, MyTimer, NoOpMyTimer, global_timer
    from .trace.csv2trace import csv_to_trace

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
    "ChecksumUtils": "checksums.batches",
    "DebugLayer": "modules.debug_layer",
    "DebuggingEvent": "stages.timers",
    "GlobalLogger": "log.logger",
    "MyTimer": "stages.timers",
    "NoOpMyTimer": "stages.timers",
    "csv_to_trace": "trace.csv2trace",
    "get_global_logger": "log.logger",
    "global_timer": "stages.timers",
}

__getattr__, __dir__ = lazy_names(__name__, (), "", _HOMES)

old_paths.install()
