"""The environment variables that a parent passes to the processes of its command.

| Variable | Holds |
|---|---|
| MY_UTILS_RUN | off: nothing is recorded |
| MY_UTILS_RUN_DIR | the run's folder, absolute |
| MY_UTILS_RUN_ID | the run's id |
| MY_UTILS_RUN_REPORT | the file in which processes report to the parent |
| MY_UTILS_RUN_PACKAGE | the folder of the package, for interpreters that have it not |
| MY_UTILS_RUN_GPU_TIMES | off: stages get no CUDA events |
| MY_UTILS_RUN_HOST_SAMPLES | off: what the training thread waits for is not sampled |
| MY_UTILS_RUN_BUCKETS | off: DDP's buckets are not timed; a number: in each n-th step |
| MY_UTILS_RUN_COLLECTIVES | off: single collectives are not recorded |
| MY_UTILS_RUN_HUNG | the seconds without a step after which torch's recorder is dumped; 0: never |
| MY_UTILS_RUN_REPLICAS | in each how many steps replicas are checked; not set: never |
| MY_UTILS_RUN_HOSTS | off: what other hosts record does not come to the host of rank 0 |
| TORCH_FR_BUFFER_SIZE | 256, unless the user has set it: torch keeps the last collectives |
| PYTHONPATH | the folder of our sitecustomize, before the user's |
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from ..core.environment import read_switch
from ..core.warnings import warn_once

DIR = "MY_UTILS_RUN_DIR"
ID = "MY_UTILS_RUN_ID"
REPORT = "MY_UTILS_RUN_REPORT"
PACKAGE = "MY_UTILS_RUN_PACKAGE"
GPU_TIMES = "MY_UTILS_RUN_GPU_TIMES"
BUCKETS = "MY_UTILS_RUN_BUCKETS"
HOST_SAMPLES = "MY_UTILS_RUN_HOST_SAMPLES"
COLLECTIVES = "MY_UTILS_RUN_COLLECTIVES"
HUNG = "MY_UTILS_RUN_HUNG"
HUNG_S = 30.0
REPLICAS = "MY_UTILS_RUN_REPLICAS"
HOSTS = "MY_UTILS_RUN_HOSTS"
FLIGHT_RINGS = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
)  # the second is the old name
FLIGHTS = 256  # collectives that torch keeps where the user says nothing

_SWITCH = "MY_UTILS_RUN"
_HERE = Path(__file__).resolve().parent
SITE_FOLDER = str(_HERE / "sitecustomize")


_at_start: dict[str, str] = {}


def remember(variables: Mapping[str, str]) -> None:
    """Keeps what a parent has passed on, for a script that clears its environment later."""
    _at_start.update((name, variables[name]) for name in (DIR, ID, REPORT) if name in variables)


def passed_on(name: str) -> str | None:
    """DIR, ID or REPORT as it is now, or was at the start; None if nobody has set it."""
    return os.environ.get(name, _at_start.get(name))


def is_on() -> bool:
    """Whether this process may record: MY_UTILS_RUN is not off."""
    return read_switch(_SWITCH, default=True)


def bucket_steps() -> int | None:
    """In each how many steps the buckets of DDP are timed: 0 never, None as the recorder thinks."""
    text = os.environ.get(BUCKETS, "").strip()
    if text.isdecimal() and int(text) > 1:
        return int(text)
    return None if read_switch(BUCKETS, default=True) else 0


def replica_steps() -> int:
    """In each how many steps replicas are checked; 0 for never."""
    text = os.environ.get(REPLICAS, "").strip()
    if not text.isdecimal() and text:
        warn_once(
            f"environment:{REPLICAS}",
            f"{REPLICAS} in the environment should be a number of steps, not {text!r:.100}; it is "
            "ignored, and no replica is checked",
        )
    return int(text) if text.isdecimal() else 0


def hung_after_s() -> float:
    """The seconds without a step after which a rank dumps its flight recorder; 0.0 for never."""
    text = os.environ.get(HUNG, "").strip()
    with contextlib.suppress(ValueError):
        seconds = float(text) if text else HUNG_S
        if 0.0 <= seconds < math.inf:
            return seconds
    warn_once(
        f"environment:{HUNG}",
        f"{HUNG} in the environment should be seconds, 0 for never, not {text!r:.100}; it is "
        f"ignored, which means {HUNG_S:g}",
    )
    return HUNG_S


def reach(environment: Mapping[str, str], *, gpu_times: bool = True) -> dict[str, str]:
    """The environment of processes that must be reached: a copy of `environment`, completed."""
    reached = dict(environment)
    path = reached.get("PYTHONPATH", "")
    before = path.split(os.pathsep) if path else []  # an empty entry is the working directory
    others = [entry for entry in before if entry != SITE_FOLDER]
    reached["PYTHONPATH"] = os.pathsep.join([SITE_FOLDER, *others])
    reached[PACKAGE] = str(_HERE.parent.parent)
    reads_flights = bucket_steps() != 0
    if reads_flights and not any(name in reached or name in os.environ for name in FLIGHT_RINGS):
        reached[FLIGHT_RINGS[0]] = str(FLIGHTS)
    if not gpu_times:
        reached[GPU_TIMES] = "0"
    return reached


def mark_process_tree(folder: Path, run_id: str) -> None:
    """Passes folder and id on to the processes that this one starts from now on."""
    os.environ[DIR] = str(folder)
    os.environ[ID] = run_id
