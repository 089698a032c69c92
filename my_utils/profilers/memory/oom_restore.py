"""When one rank runs out of memory, informs all ranks so that they react together.

A rank that skips a step alone leaves the others waiting in a collective. Here they agree first, by
the default store of torch.distributed, which still works when the GPU's memory is full.

>>> with catch_oom() as step:
...     raise MemoryError("no memory for the activations")
>>> step.happened, step.here
(True, True)
>>> with catch_oom() as step:
...     pass
>>> step.happened
False
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ...core.arguments import check_bool, check_seconds
from ...core.public import public
from ...core.ranks import current_rank, world_size
from ...core.reprs import short_repr
from ...core.store import default_store, wait_for_keys
from ...core.warnings import warn_once

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


PREFIX = "my_utils/oom"
TIMEOUT_S = 60.0
RANKS_A_WORD = 62  # the store adds up signed integers of 64 bits: a bit for each rank that came

# Allocators without their own exception type say it in the text of a RuntimeError.
OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",  # torch's CPU allocator
    "not enough memory: you tried to allocate",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class _Flag:
    """The state of this process: the number of decisions taken, and its own flag."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.round = 0
        self.raised = False


_flag = _Flag()


def set_oom_flag() -> None:
    """Says that this rank ran out of memory in this step. Thread-safe.

    It holds until the next `check_oom_flag(agree=True)` of the ranks. Where the store cannot be
    reached there is one warning, and the flag is this rank's alone.
    """
    with _flag.lock:
        _flag.raised = True
        store = default_store(PREFIX)
        if store is not None:
            _try(lambda: store.set(f"{_flag.round}/flag", "1"), True)


def check_oom_flag(agree: bool = False, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a rank ran out of memory in this step.

    agree: False reads the flag and returns, in one round trip to the store. That is a hint: a rank
        may read it before another sets it, so ranks that act on it may diverge. True takes the same
        decision on all ranks, once all have come or `timeout_s` is over, and clears the flag for
        the next step. All ranks must call it equally often, such as once a step.
    timeout_s: how long to wait for ranks that do not answer. The decision is then taken without
        them, the same on all others, and a warning lists them.

    Without torch.distributed it is this process's own flag. A store that cannot be reached warns
    once, and the answer is this rank's own. TypeError and ValueError name the argument.

    >>> set_oom_flag()
    >>> check_oom_flag(), check_oom_flag(agree=True), check_oom_flag()
    (True, True, False)
    """
    check_bool("agree", agree)
    check_seconds("timeout_s", timeout_s, 0, math.inf)
    store = default_store(PREFIX)
    if not agree:
        own = _flag.raised
        if own or store is None:
            return own
        return _try(lambda: store.check([f"{_flag.round}/flag"]), own)
    with _flag.lock:
        own, round = _flag.raised, _flag.round
        _flag.raised, _flag.round = False, round + 1
    if store is None:
        return own
    return _try(lambda: _decide(store, round, timeout_s), own)


def _decide(store: Store, round: int, timeout_s: float) -> bool:
    """Takes part in the decision of this round.

    The last rank to come writes it: by then all flags are set. A rank whose time is over writes
    one too. The store keeps the first, and all ranks use that. When the last rank has come,
    all have read the decision of the round before, whose keys can go.
    """
    size = world_size()
    deadline = time.monotonic() + timeout_s
    word, bit = divmod(current_rank(), RANKS_A_WORD)
    store.add(f"{round}/here{word}", 1 << bit)
    is_last = store.add(f"{round}/count", 1) >= size
    if not is_last and not wait_for_keys(store, [f"{round}/decision"], deadline, size):
        _name_the_missing(store, round, size, timeout_s)
    flag = store.check([f"{round}/flag"])
    decision = store.compare_set(f"{round}/decision", "", "yes" if flag else "no")
    if is_last:
        _forget(store, round - 1, size)
    return bool(decision == b"yes")


def _forget(store: Store, round: int, size: int) -> None:
    words = [f"here{word}" for word in range(_words(size))]
    for name in ("flag", "count", "decision", *words):
        store.delete_key(f"{round}/{name}")


def _words(size: int) -> int:
    return -(-size // RANKS_A_WORD)


def _name_the_missing(store: Store, round: int, size: int, timeout_s: float) -> None:
    words = [store.add(f"{round}/here{word}", 0) for word in range(_words(size))]
    missing = [
        rank for rank in range(size) if not words[rank // RANKS_A_WORD] >> (rank % RANKS_A_WORD) & 1
    ]
    names = ", ".join(map(str, missing)) or "none"
    warn_once(
        "oom_restore missing",
        f"check_oom_flag: not all ranks answered within {timeout_s:g} s, missing: {names}; "
        "the others decide without them",
    )


def _try(ask: Callable[[], object], otherwise: bool) -> bool:
    """What the store answers, or `otherwise` with one warning where it cannot be reached."""
    try:
        return bool(ask())
    except RuntimeError as error:
        warn_once("oom_restore store", f"the out-of-memory flag is this rank's alone: {error}")
        return otherwise


@public("my_utils.oom_restore")
class catch_oom:
    """Catches out-of-memory errors and reports them to all ranks: `with catch_oom() as step:`.

    timeout_s: as in `check_oom_flag`; TypeError and ValueError name it.

    On the way out the flag is set if this rank ran out of memory, and the ranks agree; if any ran
    out, torch's caches are freed. Then `step.happened` is the decision of all ranks, `step.here`
    whether this one ran out of memory, and `step.error` its exception, without the frames, which
    would keep tensors alive, also of exceptions that it is chained to. `happened` and `here` differ
    if another rank ran out, or if this rank came after the others had decided without it. No other
    exception is caught, and nothing is agreed then: the other ranks wait until their timeout.

    One `with` at a time in a process; it may be entered again. The bodies of all ranks must not
    wait for one another after a rank has failed: keep collectives out of them, or give them a
    timeout.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = check_seconds("timeout_s", timeout_s, 0, math.inf)
        self.happened = False
        self.here = False
        self.error: BaseException | None = None
        self._around: BaseException | None = None

    def __repr__(self) -> str:
        return short_repr(self, "timeout_s", "happened", "here")

    def __enter__(self) -> catch_oom:
        self.happened = self.here = False
        self.error = None
        self._around = sys.exception()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        around, self._around = self._around, None
        if error is not None and not is_out_of_memory(error):
            return False
        if error is not None:
            self.here = True
            drop_frames(error, around)
            self.error = error
            set_oom_flag()
        self.happened = check_oom_flag(agree=True, timeout_s=self.timeout_s)
        if self.happened:
            free_caches()
        return True


def drop_frames(error: BaseException, around: BaseException | None) -> None:
    """Takes the frames off an exception, and off those that it is chained to.

    around: the exception that was handled outside of the block that raised; it keeps its frames,
        and the chain ends before it.
    """
    done: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        found = waiting.pop()
        if id(found) in done:
            continue
        done.add(id(found))
        found.__traceback__ = None
        if around is not None and found.__cause__ is around:
            found.__cause__ = None
        if around is not None and found.__context__ is around:
            found.__context__ = None
        waiting += filter(None, (found.__cause__, found.__context__))
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


def free_caches() -> None:
    """Collects garbage, and gives back what torch's allocator keeps for later."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the exception says that memory ran out, on the GPU or the CPU.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in OUT_OF_MEMORY_TEXTS
    )
