"""Runs of the proof that have stages alone, judged by replay and by the rules.

    python -m tests.analysis.verdict.replay_of_stages [--runs 6] [--sizes 2,4,8] [--losses 0.2]

Prints, for each plant, how many runs each gets right. A stage of a step is an operation, and a
stage in which ranks meet is a meeting.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.operations import END, TOGETHER, Operations, number_rows
from my_utils.analysis.verdict.blame import COVERED
from my_utils.analysis.verdict.kinds import kind_of_stage
from my_utils.analysis.verdict.loss import LEAST_SHARE
from my_utils.analysis.verdict.run_data import RunData
from my_utils.analysis.why import ReplayFinding, ReplayVerdict
from tests.analysis.verdict.proof import parse, trials
from tests.analysis.verdict.trials import Outcome, Trial, attempt, outcome, run_of


def operations_of(run: RunData) -> Operations:
    """What the run's stages say, with those of its meetings that it recorded."""
    rank, step, stage = np.nonzero(np.isfinite(run.begins))
    begin, end = (one[rank, step, stage] for one in (run.begins, run.ends))
    last_rank, last_step = np.nonzero(np.isfinite(run.step_ns))  # a step ends where the next begins
    over = (run.step_begins + run.step_ns)[last_rank, last_step]
    rank, step = np.append(rank, last_rank), np.append(step, last_step)
    stage = np.append(stage, np.full(len(over), len(run.stages)))
    begin, end = np.append(begin, over), np.append(end, over)
    meeting = np.full(len(rank), -1)
    for number, point in enumerate(run.sync_points or ()):
        members = point.members or tuple(run.ranks.tolist())
        there = (np.isin(run.ranks[rank], members)) & (stage == run.stages.index(point.stage))
        meeting[there] = step[there] * len(run.sync_points or ()) + number
    known = meeting >= 0
    meeting[known] = number_rows(meeting[known])[0]
    zeros = np.zeros(len(rank), np.int64)
    peers = run.peers
    stages = {} if peers is None else dict(zip(run.ranks.tolist(), peers.tolist(), strict=True))
    hosts = dict(zip(run.ranks.tolist(), run.hosts, strict=True))
    return Operations(
        run.ranks[rank], zeros, run.steps[step], stage,
        begin.astype(np.int64), end.astype(np.int64),
        meeting, zeros + TOGETHER, (*run.stages, END), stages, hosts,
    )  # fmt: skip


def replayed(trial: Trial) -> Outcome:
    simulated, topology = run_of(trial)
    began = time.perf_counter()
    verdict = judge_operations(operations_of(simulated.run), least_share=LEAST_SHARE)
    _in_the_words_of_the_rules(verdict)
    return outcome(trial, topology, simulated, verdict, time.perf_counter() - began)


def _in_the_words_of_the_rules(verdict: ReplayVerdict) -> None:
    """Claims about ranks have the kind of their stage, and so have hiccups of one stage."""
    for one in verdict.findings:
        if not isinstance(one, ReplayFinding) or one.kind not in ("straggler", "host hiccups"):
            continue
        is_lasting = one.kind == "straggler"
        is_there = bool(one.evidence) and (is_lasting or one.evidence[0].share >= COVERED)
        stage = one.stage if is_there and not one.hosts else None
        if stage is not None and stage.startswith("before "):
            stage = "untimed"
        kind = None if stage is None else kind_of_stage(stage)
        if kind not in (None, "communication"):
            one.kind = kind
        elif stage is not None:
            one.kind = "straggler"
        one.stage = stage


def both(trial: Trial) -> tuple[Outcome, Outcome]:
    return replayed(trial), attempt(trial)


def main(argv: Sequence[str] | None = None) -> int:
    options: argparse.Namespace = parse(argv)
    todo = [one for one in trials(options) if one.recorded and not one.device and one.ranks > 1]
    cells: dict[str, list[tuple[Outcome, Outcome]]] = defaultdict(list)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for pair in pool.imap_unordered(both, todo, chunksize=4):
            cells[pair[0].trial.plant or "healthy"].append(pair)
    print("| Plant | Runs | Right by replay | Right by the rules | Not judged by replay |")
    print("|---|---|---|---|---|")
    for plant, pairs in sorted(cells.items()):
        by_replay, by_rules = (sum(pair[at].right for pair in pairs) for at in (0, 1))
        unjudged = sum(one.status == "not judged" for one, _ in pairs)
        print(f"| {plant} | {len(pairs)} | {by_replay} | {by_rules} | {unjudged} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
