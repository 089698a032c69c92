"""`my_utils run --alert`: the parent of a training watches it and tells somebody.

A thread of the parent reads every few seconds what the ranks write anyway. The training has no part
in it. Where several hosts write to one folder, only the parent of the lowest rank that lives tells
what concerns the run; each tells what concerns its host.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.process_end import join_within, status_text
from ..core.ranges import ranks_text
from ..core.receiver import Receiver
from .agreement import Place
from .closing import print_lines
from .environment import hung_after_s
from .parent import FORWARDED, FROM_TERMINAL
from .report_file import Reported, read_reports

if TYPE_CHECKING:
    from ..analysis.live.alerts.alert import Alert
    from ..analysis.live.alerts.watch import Watch
    from ..analysis.live.poller import Poller
    from ..core.run_files.state import Rank

POLL_S = 5.0
TIMES_ITS_COST = 100.0  # so that it takes 1 % of a core at most
END_S = 5.0


class Alerting:
    """Watches from its creation on. report: the file in which processes report; None where there is
    none. goodput: the limit, None for the usual one."""

    def __init__(
        self, target: str, goodput: float | None, place: Place, report: Path | None
    ) -> None:
        self._receiver = Receiver(target, lambda text: print_lines([f"my_utils run: {text}"]))
        self._goodput = goodput
        self._place = place
        self._report = report
        self._report_size = 0
        self._reported = Reported()
        self._watch: Watch | None = None
        self._poller: Poller | None = None
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="my_utils alerts", daemon=True)
        self._thread.start()

    def end(self, status: int, reported: Reported, *, was_asked: bool) -> None:
        """The command has ended. was_asked: by a signal to this process. Takes five seconds at
        most where the receiver does not answer, and where a disk does not."""
        self._over.set()
        if not join_within(self._thread, END_S):
            return
        if status and not was_asked:
            watch = self._watch or self._new_watch(str(self._place.folder))
            watch.end(_failure(status, reported))
        elif self._watch is not None:
            self._watch.end()
        self._receiver.close()

    # --- the thread ---

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, *FROM_TERMINAL))
        wait_s = POLL_S
        while not self._over.wait(wait_s):
            began_s = time.thread_time()
            try:
                self._poll()
            except Exception as error:
                print_lines([f"my_utils run: no more alerts: {type(error).__name__}: {error}"])
                return
            cost_s = time.thread_time() - began_s
            cost_s -= self._watch.judging_s if self._watch is not None else 0.0
            wait_s = max(POLL_S, TIMES_ITS_COST * cost_s)

    def _poll(self) -> None:
        if self._report is not None:
            with contextlib.suppress(OSError):
                size = self._report.stat().st_size
                if size != self._report_size:
                    self._report_size, self._reported = size, read_reports(self._report)
        places = self._reported.places()
        if not places:
            return
        if self._poller is None or self._poller.request.log_dirs != tuple(places):
            self._begin(places)
        assert self._poller is not None
        with contextlib.suppress(OSError):  # a folder that is not there for a moment
            self._poller.poll()

    def _begin(self, places: Sequence[str]) -> None:
        """Imports what a run without alerts does not need."""
        from ..analysis.live.poll import STUCK_AFTER_S, SnapshotRequest
        from ..analysis.live.poller import Poller

        if self._watch is None:
            self._watch = self._new_watch(places[0])
        request = SnapshotRequest(tuple(places), None, STUCK_AFTER_S)
        self._poller = Poller(request, self._watch)

    def _new_watch(self, folder: str) -> Watch:
        from ..analysis.live.alerts.steps import Steps
        from ..analysis.live.alerts.watch import GOODPUT_LEAST, Limits, Watch
        from ..core.run_files.run_file import read_run_file

        run_id = self._place.run_id
        with contextlib.suppress(OSError, ValueError):  # ranks of several hosts agree on one
            run_id = str(read_run_file(folder).get("run_id") or run_id)
        goodput = GOODPUT_LEAST if self._goodput is None else self._goodput
        return Watch(
            Path(folder).name, run_id, self._receiver.send, Limits(hung_after_s(), goodput),
            leads=self._leads, steps=Steps(self._began_s),
        )  # fmt: skip

    def _leads(self, ranks: Sequence[Rank]) -> bool:
        own = self._reported.ranks
        lowest = min(own, default=0)
        return not any(
            rank.rank < lowest and rank.state == "running" and rank.rank not in own
            for rank in ranks
        )


def _failure(status: int, reported: Reported) -> Alert:
    from ..analysis.live.alerts.alert import Alert

    exits = reported.exits_of_ranks()
    # A launcher ends the others once one has failed.
    exits = {rank: of for rank, of in exits.items() if of != -signal.SIGTERM} or exits
    ranks_of: dict[int, list[int]] = {}
    for rank, of_rank in sorted(exits.items()):
        ranks_of.setdefault(of_rank, []).append(rank)
    ends = [f"{ranks_text(ranks, 6)} {status_text(of)}" for of, ranks in ranks_of.items()]
    what = f"the run ended {status_text(status)}"
    return Alert("gone", what, "; ".join(ends[:3]), tuple(sorted(exits)))
