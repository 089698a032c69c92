"""The stages of a rank and the collectives in them, recorded by `my_utils run`, for a replay."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ...core.run_files.state import COLLECTIVES_TAG
from .rank_files import Columns, RankStages, chosen, place_of
from .tracks import RUN_TAG, Mask, training_rows

WAIT = "wait "
PEERS = ("send", "recv")  # kinds of calls whose place is a rank
COMPUTES = ("forward", "backward")


class Call:
    """A collective, or a call to another rank. place: the label of its group, or the number of the
    other rank. wait_ns: begin and end of the wait for it, None where the training thread did not
    wait. Times are Unix time."""

    def __init__(self, kind: str, place: str, begin_ns: int, end_ns: int) -> None:
        self.kind, self.place = kind, place
        self.begin_ns, self.end_ns = begin_ns, end_ns
        self.wait_ns: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Of its operation, the same on all ranks that do the same."""
        return self.kind if self.kind in PEERS else f"{self.kind} {self.place}"


class RecordedRank:
    """One rank, its last attempt. rows: step, path (an index into `paths`), begin_ns and end_ns of
    its stages, in the order of time. starts: when each step begins. calls: in the order in which
    they were called; none where `meets_inside` is false: ranks meet neither inside a forward or a
    backward, nor by sends and receives. stage: of a pipeline. groups: by their labels, the members.
    reduces_with: the members of the group over which DDP reduces at the end of backward."""

    def __init__(self, rank: RankStages) -> None:
        self.number, self.host, self.paths = rank.metadata.rank, rank.metadata.host, rank.paths
        pairs = [(note.name, note.pairs) for note in rank.notes]
        stages = [one["pipeline_stage"] for _, one in pairs if "pipeline_stage" in one]
        self.stage = place_of(stages[-1]) if stages else None
        self.groups = {
            one.get("label", ""): one.get("members", "")
            for name, one in pairs
            if name == "my_utils.group"
        }
        self.reduces_with = next(
            (
                one.get("members", "")
                for name, one in pairs
                if name == "my_utils.sync"
                and (one.get("kind"), one.get("stage")) == ("ddp", "backward")
            ),
            None,
        )
        self.attempt = int(rank.stages["attempt"].max(initial=0))
        is_last = rank.stages["attempt"] == self.attempt
        is_run = rank.stages["tag"] == rank.tags.index(RUN_TAG)
        in_steps = rank.stages["step"] >= 0
        self.rows = _in_order(rank, training_rows(rank) & is_last & is_run & in_steps)
        self._find_starts()
        is_call = rank.stages["tag"] == rank.tags.index(COLLECTIVES_TAG)
        outermost = rank.around[rank.stages["path"]] < 0
        called = _in_order(rank, is_last & is_call & outermost)
        self.meets_inside = self._meets_inside(called)
        self.calls = self._calls(called) if self.meets_inside else []

    def shift(self, steps: int) -> None:
        """Numbers the steps from so many steps later on."""
        self.rows["step"] = self.rows["step"] + steps
        self._find_starts()

    def _find_starts(self) -> None:
        steps, firsts = np.unique(self.rows["step"], return_index=True)
        begins = self.rows["begin_ns"][firsts]
        self.starts: dict[int, int] = dict(zip(steps.tolist(), begins.tolist(), strict=True))

    def _meets_inside(self, called: Columns) -> bool:
        passes_on = np.array([path.partition(" ")[0] in PEERS for path in self.paths], bool)
        if passes_on[called["path"]].any():
            return True
        inside = np.array([path in COMPUTES for path in self.paths], bool)[self.rows["path"]]
        begins, ends = self.rows["begin_ns"][inside], self.rows["end_ns"][inside]
        at = np.searchsorted(begins, called["begin_ns"], "right") - 1
        known = at >= 0
        return bool((called["begin_ns"][known] < ends[at[known]]).any())

    def _calls(self, called: Columns) -> list[Call]:
        """A wait is for the oldest call of its name where all calls are waited for, else for the
        latest one before it."""
        thread = int(self.rows["tid"][0]) if len(self.rows["tid"]) else -1
        counts = np.bincount(called["path"], minlength=len(self.paths)).tolist()
        count_of = dict(zip(self.paths, counts, strict=True))
        calls: list[Call] = []
        open_: dict[str, list[Call]] = defaultdict(list)
        columns = (called[name].tolist() for name in ("path", "tid", "begin_ns", "end_ns"))
        for path, tid, begin, end in zip(*columns, strict=True):
            text = self.paths[path]
            if text.startswith(WAIT):
                awaited = text.removeprefix(WAIT)
                if open_[awaited] and tid == thread:
                    is_each_awaited = count_of[text] == count_of[awaited]
                    open_[awaited].pop(0 if is_each_awaited else -1).wait_ns = (begin, end)
                continue
            kind, _, place = text.partition(" ")
            calls.append(Call(kind, place, begin, end))
            open_[text].append(calls[-1])
        return calls


def recorded_rank(rank: RankStages) -> RecordedRank | None:
    """None where no collectives were recorded, and for a rank with a GPU, whose times on the host
    say little. Thread-safe."""
    is_on_gpu = any(note.pairs.get("device", "cpu") != "cpu" for note in rank.notes)
    if COLLECTIVES_TAG not in rank.tags or RUN_TAG not in rank.tags or is_on_gpu:
        return None
    found = RecordedRank(rank)
    return found if found.starts else None


def _in_order(rank: RankStages, those: Mask) -> Columns:
    """The rows in the order of their begins."""
    columns = chosen(rank.stages, those)
    order = np.argsort(columns["begin_ns"], kind="stable")
    return {name: columns[name][order] for name in ("step", "path", "tid", "begin_ns", "end_ns")}
