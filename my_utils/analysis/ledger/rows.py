"""The rows of a ledger, and which of them the stages of a step belong to."""

from __future__ import annotations

import functools

from ..verdict.kinds import Kind, kind_of_stage
from ..verdict.rank_files import SEPARATOR

LAUNCHER, LAUNCH, RESTORE = "launcher", "launch", "restore"
COMPILE, WARM_UP = "compile", "warm-up"
COMPUTE, COMMUNICATION, WAITING = "compute", "communication", "waiting"
INPUT, COPIES, EVALUATION, CHECKPOINT = "input", "copies", "evaluation", "checkpoint"
GC, NO_CORE, QUOTA = "gc", "no core", "quota"
PAUSE, OTHER_CODE = "pause", "other code"
IN_VAIN, HANG, RESTART = "in vain", "hang", "restart"
NOT_TRAINING = "not training"
CLOSING, EXIT, NOT_RECORDED = "closing", "exit", "not recorded"

# Each with what it is, in the order in which it is shown.
ROWS = {
    COMPUTE: "forward, loss, backward, optimizer and stages of other names; of a stage in which "
    "ranks meet what its shortest rank needs",
    COMMUNICATION: "of a collective: the shortest stay of its ranks",
    WAITING: "own stay in a meeting, less the shortest in it",
    INPUT: "the next batch",
    COPIES: "to the device",
    EVALUATION: "evaluation between steps",
    CHECKPOINT: "saving",
    GC: "garbage collection, where a step takes longer by it",
    QUOTA: "the cgroup's quota was used up, where a step takes longer by it",
    NO_CORE: "other threads had the cores, where a step takes longer by it",
    PAUSE: "in no stage: above its usual",
    OTHER_CODE: "in no stage: the usual",
    COMPILE: "Dynamo compiles, where a step takes longer by it",
    WARM_UP: "of an attempt's first steps, what is above the usual of each row",
    IN_VAIN: "steps that a restart did again",
    LAUNCHER: "from the job's start to its first process",
    LAUNCH: "from a process's start to the first stage of its first step",
    RESTORE: "loading a checkpoint",
    NOT_TRAINING: "stages named not_training, and what is inside them",
    HANG: "from the last progress to the end",
    RESTART: "from the end of a process to the next one",
    CLOSING: "after the last step",
    EXIT: "from the end of the last process to the job's end",
    NOT_RECORDED: "no files, or rows that were lost",
}
# Of the steps that were kept.
GOODPUT = (
    COMPUTE, COMMUNICATION, WAITING, INPUT, COPIES, EVALUATION, CHECKPOINT, GC, QUOTA, NO_CORE,
    PAUSE, OTHER_CODE,
)  # fmt: skip

PLACES = {name: place for place, name in enumerate(ROWS)}
IN_STEPS = PLACES[IN_VAIN] + 1  # so many of them, the first, have the time of steps

_OF_KINDS: dict[Kind, str] = {
    "input": INPUT, "h2d": COPIES, "checkpoint": CHECKPOINT, "eval": EVALUATION,
    "communication": COMMUNICATION,
}  # fmt: skip
_BY_NAME = {"restore": RESTORE, "load_checkpoint": RESTORE, "not_training": NOT_TRAINING}
_WHOLE = (NOT_TRAINING, RESTORE, EVALUATION, CHECKPOINT)  # what is inside them belongs to them
IN_NO_STEP = (RESTORE, NOT_TRAINING)  # wherever they are


@functools.lru_cache(maxsize=1024)  # ranks have the same stages
def row_of_stage(path: str) -> str:
    """The row of what a stage takes beside the stages inside it.

    >>> row_of_stage("iter/data"), row_of_stage("eval/forward"), row_of_stage("forward")
    ('input', 'evaluation', 'compute')
    >>> row_of_stage("not_training/evaluation of another model/data")
    'not training'
    """
    rows = [_row_of_name(name) for name in path.split(SEPARATOR)]
    around = next((row for row in rows if row in _WHOLE), None)
    inside = next((row for row in reversed(rows) if row is not None), COMPUTE)
    return around or inside


def _row_of_name(name: str) -> str | None:
    kind = kind_of_stage(name)
    of_kind = None if kind is None else _OF_KINDS.get(kind)
    return _BY_NAME.get(name.lower(), of_kind)
