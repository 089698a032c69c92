"""Loads runs as the steps to compare: the time of each stage in each step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..ledger.ledger import Ledger
from ..ledger.read import LedgerReader
from ..verdict.device import by_the_device
from ..verdict.kinds import UNTIMED
from ..verdict.load import NothingToJudge, load_run
from ..verdict.rank_files import SEPARATOR
from ..verdict.run_data import Integers, Matrix, RunData
from ..verdict.run_ranks import missing_text
from ..verdict.warmup import find_warmup

STAGES_MAX = 80
MEMORY = ("allocated_bytes", "rss_bytes")


class NothingToCompare(ValueError):
    """The sides cannot be compared; the text says why."""


@dataclass
class RunSteps:
    """One run of R ranks and S steps that all ranks have.

    stages: K paths; the last is "untimed", what no stage covers. parts: the time of each without
    the stages inside it, in ns, an array R × S × K; the sum over K is the step. warmup: how many
    steps at the beginning take longer; S where the warm-up never ends. memory: peak bytes of a
    step, over the ranks, array S, by the counter's name. items: "samples" and "tokens" of all ranks
    in a step, arrays S, where recorded. path: where it was read from. problems: what could not be
    read. by_host: if the times are those of the GPU, the same run with the times of its hosts.
    ledger: where all time of its job went.

    >>> run = RunSteps(["forward", "untimed"], np.ones((2, 30, 2)))
    >>> run.step_ns.shape, float(run.step_ns[0])
    ((30,), 2.0)
    """

    stages: list[str]
    parts: Matrix
    ranks: Sequence[int] = ()
    warmup: int = 0
    memory: dict[str, Matrix] = field(default_factory=dict)
    items: dict[str, Matrix] = field(default_factory=dict)
    path: str = ""
    problems: list[str] = field(default_factory=list)
    by_host: RunSteps | None = None
    ledger: Ledger | None = None

    @property
    def step_ns(self) -> Matrix:
        """The mean of the ranks, an array S."""
        mean: Matrix = self.parts.sum(2).mean(0)
        return mean


def load_steps(
    path: str | os.PathLike[str],
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    renames: Mapping[str, str] | None = None,
) -> RunSteps:
    """The steps of one run.

    path: its log directory, or a profile CSV, journal or glob. ranks, steps: only these, by default
    all; steps is a half-open range. renames: new paths by old paths of stages; the stages inside a
    renamed one get the new path too. An old path that no stage has is among the problems.

    Raises NothingToCompare, a ValueError, where no rank can be read. Thread-safe.
    """
    name = os.fspath(path)
    reader = LedgerReader()
    try:
        run = load_run(
            name, ranks, steps, least_share=0.0, stages_max=STAGES_MAX, on_rank=reader.add
        )
    except NothingToJudge as error:
        raise NothingToCompare(f"{name}: {str(error).splitlines()[0]}") from None
    reader.choose(run)
    ledger = reader.ledger()
    found = read_steps(run, renames or {})
    missing = [
        f"has no stage {old!r} to rename" for old in renames or () if not _has(run.stages, old)
    ]
    for one in (found, found.by_host):
        if one is not None:
            one.path, one.ledger = name, ledger
            one.problems += missing
    return found


def read_steps(run: RunData, renames: Mapping[str, str]) -> RunSteps:
    """The last step is left out: it has no next one that would say where it ends. On CUDA stages
    take what they take the device, as in the verdict: the host only enqueues them, and waits for
    them elsewhere."""
    found = _steps(run, renames)
    seen = by_the_device(run)
    if seen is None:
        if run.device == "cuda":
            found.problems.append(
                "has no GPU times: the times of stages are the host's times of enqueueing"
            )
        return found
    by_device = _steps(seen, renames)
    by_device.by_host = found
    return by_device


def _steps(run: RunData, renames: Mapping[str, str]) -> RunSteps:
    missing: Integers = np.isnan(run.step_ns).sum(0)
    kept = missing == 0
    kept[-1:] = False
    names = [_renamed(stage, renames) for stage in run.stages]
    stages = [*dict.fromkeys(names), UNTIMED]
    totals = run.totals[:, kept]
    parts = np.zeros((*totals.shape[:2], len(stages)))
    for at, name in enumerate(names):
        parts[..., stages.index(name)] += totals[..., at]
    parts[..., -1] = run.step_ns[:, kept] - totals.sum(2)
    problems = list(run.problems)
    if run.missing_ranks:
        problems.append(f"{missing_text(run)}: put those of all hosts into one folder")
    counters = {name: values[:, kept] for name, values in run.counters.items()}
    return RunSteps(
        stages,
        parts,
        run.ranks.tolist(),
        find_warmup(run.step_ns[:, kept]) if kept.any() else 0,
        {name: counters[name].max(0) for name in MEMORY if name in counters},
        {name: counters[name].sum(0) for name in ("samples", "tokens") if name in counters},
        problems=problems,
    )


def _renamed(stage: str, renames: Mapping[str, str]) -> str:
    """
    >>> _renamed("forward/attn/qkv", {"forward/attn": "forward/attention"})
    'forward/attention/qkv'
    """
    for old, new in renames.items():
        if _has([stage], old):
            return new + stage[len(old) :]
    return stage


def _has(stages: Iterable[str], path: str) -> bool:
    """Whether the path is that of a stage, or of one around a stage."""
    return any(stage == path or stage.startswith(path + SEPARATOR) for stage in stages)


def aligned(sides: Sequence[Sequence[RunSteps]]) -> list[str]:
    """Gives all runs the same stages, in the same order, and returns them.

    A stage that only some runs of each side have counts into the one around it: whether a run shows
    it is chance, and no difference of the sides. One that all runs of a side have stays.
    """
    everywhere = [set.intersection(*(set(run.stages) for run in runs)) for runs in sides]
    kept = set.union(*everywhere)
    stages = [*sorted(kept - {UNTIMED}), UNTIMED]
    for run in (run for runs in sides for run in runs):
        parts = np.zeros((*run.parts.shape[:2], len(stages)))
        for at, stage in enumerate(run.stages):
            parts[..., stages.index(_around(stage, kept))] += run.parts[..., at]
        run.stages, run.parts = list(stages), parts
    return stages


def _around(stage: str, kept: set[str]) -> str:
    while stage and stage not in kept:
        stage = stage.rpartition(SEPARATOR)[0]
    return stage or UNTIMED
