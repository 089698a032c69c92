"""A process of torchrun's: it tells the parent how the ranks that it started have ended.

Only the launcher learns whether a rank ended by a signal or with an exit status.
"""

from __future__ import annotations

import os
from typing import Any

from .report_file import report_exit
from .stages.late_imports import when_imported

_FAILURES = "torch.distributed.elastic.multiprocessing.errors"


def watch_exits() -> None:
    """Of the ranks that this process starts, if it is a launcher; a rank starts none."""
    if "RANK" not in os.environ:
        when_imported(_FAILURES, _report_failures)


def _report_failures(errors: Any) -> None:
    """torch makes a ProcessFailure of each rank that did not end with 0."""
    failure = getattr(errors, "ProcessFailure", None)
    completed = getattr(failure, "__post_init__", None)
    if failure is None or completed is None:
        return

    def complete(self: Any) -> None:
        completed(self)
        report_exit(getattr(self, "pid", None), getattr(self, "exitcode", None))

    failure.__post_init__ = complete
