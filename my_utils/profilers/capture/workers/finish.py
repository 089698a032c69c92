"""The command that workers run once, after the last captured step.

The driver asks for it by `finish_capture`; the worker starts it and does not wait. The variables
that it finds have the names of verl's hook, so that one command serves both.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....core.ranks import check_rank, current_rank

if TYPE_CHECKING:
    from .config import Finish

METHOD = "finish_capture"

_logger = logging.getLogger("my_utils")


def finish_request(finish: Finish, backend: Mapping[str, Any], rank: int | None) -> dict[str, Any]:
    """What `finish_capture` is passed. rank: of the worker, if known."""
    tool = backend["tool"]
    return {
        "command": finish.command,
        "ranks": finish.ranks,
        "rank": rank,
        "tool": tool if isinstance(tool, str) else ",".join(tool),
        "output_dir": backend["output_dir"],
    }


def finish_capture(request: Mapping[str, Any], *, rank: int | None = None) -> str:
    """See `CaptureWorker.finish_capture`. rank: of this worker, by default as the driver says."""
    known = request.get("rank") if rank is None else rank
    mine = current_rank() if known is None else check_rank("rank", known)
    ranks = request.get("ranks")
    if ranks is not None and mine not in ranks:
        return f"not for rank {mine}"
    command = str(request["command"])
    environment = {
        **os.environ,
        "VERL_PROFILE_SAVE_PATH": os.path.abspath(request["output_dir"]),
        "VERL_PROFILE_TOOL": str(request["tool"]),
        "VERL_PROFILE_RANK": str(mine),
        "VERL_PROFILE_PID": str(os.getpid()),
    }
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], env=environment, stdin=subprocess.DEVNULL
    )
    _logger.info("command after the last capture: pid %d: %s", process.pid, command)
    threading.Thread(
        target=_wait, args=(process, command), name="my_utils-finish", daemon=True
    ).start()
    return "started"


def _wait(process: subprocess.Popen[bytes], command: str) -> None:
    status = process.wait()
    if status != 0:
        _logger.warning("command after the last capture: exit status %d: %s", status, command)
