"""Ledgers of runs whose truth is known: each row, and that they add up to the wall clock."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.diff.comparison import compare_files
from my_utils.analysis.ledger.data import as_data
from my_utils.analysis.ledger.ledger import Ledger
from my_utils.analysis.ledger.read import LedgerReader
from my_utils.analysis.ledger.rows import GOODPUT, PLACES, ROWS
from my_utils.analysis.ledger.text import ledger_lines, table_lines
from my_utils.analysis.replay.inputs import verdict_of
from my_utils.cli.why import main as why

from ...support.planted_runs import Run
from ...support.run_csv import HEADER, START_NS, RankCsv
from ...support.variants import gate_runs

pytestmark = pytest.mark.no_torch


def ledger_of(*folders: Path, ranks: set[int] | None = None) -> Ledger:
    reader = LedgerReader()
    names = [str(folder) for folder in folders]
    verdict_of(names, ranks, ledger=reader)
    found = reader.ledger(ranks=ranks)
    assert found is not None
    adds_up(found)
    return found


def adds_up(ledger: Ledger) -> None:
    assert (ledger.ns >= 0).all()
    assert ledger.ns.sum(1).tolist() == ledger.wall_ns.tolist()
    printed = " ".join(ledger_lines(ledger))
    shares = [float(share) for share in re.findall(r"([0-9.]+) %", printed)]
    assert not shares or sum(shares) == pytest.approx(100.0, abs=1e-6), printed
    head, _, *rows = table_lines(ledger)
    goodput = sum(
        float(match[2])
        for row in rows
        if (match := re.match(r"  (\w.*?) +([0-9.]+) %", row)) and match[1] in GOODPUT
    )
    assert f"goodput {goodput:.1f} %" in head, (head, rows)


def of(ledger: Ledger, row: str, rank: int = 0) -> int:
    return int(ledger.ns[ledger.ranks.index(rank), PLACES[row]])


# --- a step ---


def test_ranks_wait_for_the_slow_one(tmp_path: Path) -> None:
    run = Run(ranks=4, steps=60).slower(2, "forward", rank=1)
    ledger = ledger_of(run.write(tmp_path / "logs"))
    stays = run.exits_ns - run.entries_ns
    waits = (stays - stays.min(0)).sum(1)
    for rank in range(4):
        in_steps = sum(of(ledger, row, rank) for row in ("waiting", "communication", "warm-up"))
        assert in_steps >= stays[rank].sum() and of(ledger, "waiting", rank) <= waits[rank]
        assert of(ledger, "waiting", rank) == pytest.approx(waits[rank], rel=0.03, abs=1e6)
    first = ledger.culprits[0]
    assert (first.rank, first.row) == (1, "compute")
    assert first.wait_ns == pytest.approx(waits.sum(), rel=0.05)


def test_meetings_belong_together_by_their_number(tmp_path: Path) -> None:
    """Where a rank has lost the last steps, too."""
    run = Run(ranks=3, steps=60).slower(2, "data", rank=2)
    folder = run.write(tmp_path / "logs")
    whole = ledger_of(folder)
    file = folder / "profile_rank_0.csv"
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join(row for row in rows if ",59," not in row))
    cut = ledger_of(folder)
    assert of(cut, "waiting", 1) == pytest.approx(of(whole, "waiting", 1), rel=0.03)


def in_groups(folder: Path, sampled: int) -> Path:
    """Four ranks in two groups, whose forward holds a collective. The first rank of each group is
    late to it by 2 ms, and the calls of each `sampled`-th step have rows."""
    for rank in range(4):
        late = 2.0 if rank % 2 == 0 else 0.0
        one = RankCsv(rank, 4)
        one.process()
        one.note("run", {"version": 1})
        one.note("group", {"label": "tp", "members": "0-1" if rank < 2 else "2-3"})
        one.note("sync", {"stage": "", "kind": "none", "members": ""})
        for step in range(40):
            at = 10.0 * step
            one.step(step, at, [("input", 0, 1), ("forward", 1 + late, 6), ("optimizer", 6, 8)])
            if step % sampled == 0:
                one.stage("all_reduce tp", step, at + 2 + late, at + 5, tag="collectives")
                one.stage("all_reduce tp", step, at + 5, at + 5.5, tag="collectives", tid=9)
        one.in_order().write(folder)
    return folder


@pytest.mark.parametrize("sampled", [1, 8])
def test_ranks_meet_in_stages_that_hold_collectives(tmp_path: Path, sampled: int) -> None:
    ledger = ledger_of(in_groups(tmp_path / "logs", sampled))
    waits = [of(ledger, "waiting", rank) for rank in range(4)]
    assert waits == [0, 80_000_000, 0, 80_000_000]
    assert [of(ledger, "compute", rank) for rank in range(4)] == [(3 + 2) * 40_000_000] * 4
    assert [one.rank for one in ledger.culprits] == [0, 2]


def meeting_in_collective(rank: int, world_size: int, *kinds: str) -> RankCsv:
    """Of a run that recorded that all ranks meet in this stage."""
    one = RankCsv(rank, world_size)
    one.process()
    one.note("run", {"version": 1})
    for kind in kinds:
        one.note("sync", {"stage": "collective", "kind": kind, "members": f"0-{world_size - 1}"})
    return one


def test_a_stage_with_sends_and_receives_is_not_split_by_its_stays(tmp_path: Path) -> None:
    """Though a collective is called in it, too."""
    waits = []
    for kinds in (["collective"], ["pipeline", "collective"]):
        for rank in range(2):
            one = meeting_in_collective(rank, 2, *kinds)
            for step in range(40):
                at = 10.0 * step
                one.step(step, at, [("forward", 0, 2), ("collective", 2, 6 - rank)])
            one.in_order().write(tmp_path / kinds[0])
        waits.append(of(ledger_of(tmp_path / kinds[0]), "waiting"))
    assert waits == [40_000_000, 0]


STAYS: tuple[dict[tuple[str, int], tuple[int, ...]], ...] = (
    {("send", 1): (1, 3), ("recv", 1): (6,)},  # ms, by rank: two messages there, one back
    {("recv", 0): (2, 1), ("send", 0): (4,), ("send", 2): (3,)},
    {("recv", 1): (5,)},
)


def passing_on(folder: Path, is_awaited: bool, is_recorded: Callable[[int], bool]) -> Path:
    """Three ranks that send to each other, 40 steps. is_awaited: the calls return at once, and what
    they stay are waits."""
    for rank, messages in enumerate(STAYS):
        one = meeting_in_collective(rank, 3, "pipeline")
        for step in range(40):
            at = 30.0 * step
            one.step(step, at, [("forward", 0, 2), ("collective", 2, 22), ("optimizer", 22, 30)])
            at += 2
            for (kind, other), stays in messages.items():
                for stay in stays if is_recorded(step) else ():
                    call, begun = f"{kind} {other}", at
                    if is_awaited:
                        begun = at + 0.5
                        one.stage(call, step, at, begun, tag="collectives")
                        call = f"wait {call}"
                    one.stage(call, step, begun, begun + stay, tag="collectives")
                    at = begun + stay
        one.in_order().write(folder)
    return folder


@pytest.mark.parametrize("is_awaited", [False, True], ids=["blocking", "awaited"])
@pytest.mark.parametrize("every", [1, 8])
def test_a_send_meets_its_receive(tmp_path: Path, is_awaited: bool, every: int) -> None:
    """Message by message: of two from rank 0 to rank 1 one waits for the receiver, one for the
    sender. Where some steps have no rows of their calls, their time stays where it is."""
    ledger = ledger_of(passing_on(tmp_path / "logs", is_awaited, lambda step: step % every == 0))
    steps = 40 // every
    assert [of(ledger, "waiting", rank) for rank in range(3)] == [
        steps * (3 - 1 + 6 - 4) * 1_000_000, steps * (2 - 1) * 1_000_000,
        steps * (5 - 3) * 1_000_000,
    ]  # fmt: skip
    for rank in range(3):
        in_stage = of(ledger, "waiting", rank) + of(ledger, "communication", rank)
        assert in_stage == 40 * 20_000_000
    waited = {one.rank: one.wait_ns for one in ledger.culprits}
    assert waited == {0: steps * 1_000_000, 1: steps * (2 + 2 + 2) * 1_000_000}


def test_which_of_several_sends_was_waited_for_is_not_guessed(tmp_path: Path) -> None:
    for rank, (kind, waits) in enumerate((("send", (3,)), ("recv", (1, 7)))):
        one = meeting_in_collective(rank, 2, "pipeline")
        for step in range(40):
            at = 30.0 * step
            one.step(step, at, [("forward", 0, 2), ("collective", 2, 22)])
            for place in range(2):
                begun = at + 2 + place
                one.stage(f"{kind} {1 - rank}", step, begun, begun + 0.5, tag="collectives")
            at += 4
            for wait in waits:
                one.stage(f"wait {kind} {1 - rank}", step, at, at + wait, tag="collectives")
                at += wait
        one.in_order().write(tmp_path / "logs")
    assert ledger_of(tmp_path / "logs").total_ns("waiting") == 0


def restoring(folder: Path, step: int, note: str) -> Path:
    """Two ranks that load a checkpoint together, rank 1 for 2 ms more: in a stage of which the
    run's rows say that they meet in it, or inside which they call a collective. They do so before
    the stages of a step."""
    for rank in range(2):
        one = RankCsv(rank, 2)
        one.process()
        one.note("run", {"version": 1})
        one.note("sync", {"stage": "backward", "kind": "ddp", "members": ""})
        if note == "sync":
            one.note("sync", {"stage": "restore", "kind": "collective", "members": ""})
        else:
            one.note("group", {"label": "", "members": "0-1"})
        for number in range(40):
            at = 20.0 * number
            one.step(number, at, [("input", 9, 10), ("forward", 10, 12), ("backward", 12, 17)])
            if number == step:
                one.stage("restore", number, at, at + 5 + 2 * rank)
            if number == step and note == "call":
                one.stage("all_gather ", number, at + 1, at + 4, tag="collectives")
        one.in_order().write(folder)
    return folder


@pytest.mark.parametrize(
    "step, at_ms", [(0, -20), (5, 110), (39, 805)], ids=["before", "within", "behind"]
)
def test_what_a_script_does_beside_training_has_a_row(
    tmp_path: Path, step: int, at_ms: float
) -> None:
    """Before the first step, within one, and behind the last: stages inside it belong to it."""
    one = RankCsv()
    one.process(ms=-50.0)
    for number in range(40):
        longer = 30.0 if number == step == 5 else 0.0
        begin = 20.0 * number + (30.0 if number > step == 5 else 0.0)
        one.step(number, begin, [("input", 0, 2), ("forward", 2 + longer, 8 + longer)])
    whole = one.stage("not_training", step, at_ms, at_ms + 10)
    one.stage("data", step, at_ms + 1, at_ms + 3, parent=whole)
    ledger = ledger_of(one.in_order().write(tmp_path / "logs"))
    assert of(ledger, "not training") == 10_000_000
    assert of(ledger, "input") + of(ledger, "warm-up") == 40 * 2_000_000
    assert ledger.goodput == pytest.approx(
        1 - sum(ledger.share(row) for row in ROWS if row not in GOODPUT)
    )


@pytest.mark.parametrize("note", ["sync", "call"])
@pytest.mark.parametrize("step", [0, 5], ids=["at first", "in a step"])
def test_ranks_that_meet_to_restore_do_not_wait(tmp_path: Path, step: int, note: str) -> None:
    folder = restoring(tmp_path / "logs", step, note)
    ledger = ledger_of(folder)
    assert [of(ledger, "restore", rank) for rank in range(2)] == [5_000_000, 7_000_000]
    assert ledger.total_ns("waiting") == 0
    assert why([str(folder), "--ledger", "--quiet"]) in (0, 3)


# --- attempts ---

LATER_NS = START_NS + 20 * 10**9


def restarted(folder: Path, first_step: int) -> Run:
    Run(ranks=2, steps=60).write(folder)
    later = Run(ranks=2, steps=60, first_step=first_step, attempt=2, start_ns=LATER_NS)
    later.write(folder)
    return later


def test_steps_that_come_again_were_done_in_vain(tmp_path: Path) -> None:
    first = Run(ranks=2, steps=60)
    restarted(tmp_path / "logs", 40)
    ledger = ledger_of(tmp_path / "logs")
    assert [one.in_vain for one in ledger.attempts] == [(40, 59), None]
    first.write(tmp_path / "again")  # the same by its seed
    took = first.exits_ns[0] + first.took_ns[0, :, -1]
    assert of(ledger, "in vain") == took[59] - took[39]
    assert of(ledger, "restart") == LATER_NS - took[59]
    assert "in vain" in " ".join(ledger_lines(ledger))
    assert "steps 40-59 of attempt 1 in vain" in "\n".join(table_lines(ledger))


def test_what_continues_was_not_in_vain(tmp_path: Path) -> None:
    restarted(tmp_path / "logs", 60)
    ledger = ledger_of(tmp_path / "logs")
    assert [one.in_vain for one in ledger.attempts] == [None, None]
    assert of(ledger, "in vain") == 0


def test_the_job_may_have_fewer_or_more_ranks_later(tmp_path: Path) -> None:
    """What a rank is not there is in no other row."""
    for name, first, second in (("fewer", 3, 2), ("more", 2, 3)):
        folder = tmp_path / name
        run = Run(ranks=first, steps=60)
        run.write(folder)
        later = Run(ranks=second, steps=60, first_step=60, attempt=2, start_ns=LATER_NS)
        later.write(folder)
        ledger = ledger_of(folder)
        assert ledger.ranks == [0, 1, 2]
        of_the_other = {"fewer": later, "more": run}[name]
        took = of_the_other.exits_ns[0, -1] + of_the_other.took_ns[0, -1, -1]
        gone_ns = took - (START_NS if name == "more" else LATER_NS)
        assert of(ledger, "not recorded", 2) > gone_ns
        assert of(ledger, "launcher", 2) == 0 and of(ledger, "exit", 2) == 0
        assert f"  ranks by attempt: {first}, {second}" in table_lines(ledger)


def joined_later(folder: Path, own: int, died: bool = False) -> Path:
    """Rank 1 runs on host B, which joins after 300 s: its first attempt, `own` by its own count.
    Before that rank 0 computes for 800 ms a step, and then for 400 ms, and waits for rank 1, which
    computes for 700 ms. died: rank 0 was also started in between, and did nothing."""
    for rank, host, attempts in ((0, "A", {1: 800, 2 + died: 400}), (1, "B", {own: 700})):
        one = RankCsv(rank, 2, host)
        if died and rank == 0:
            one.process(2, 200_000)
        for attempt, forward_ms in attempts.items():
            at = 0 if forward_ms == 800 else 300_000
            one.process(attempt, at)
            one.note("run", {"version": 1}, at)
            sync = {"stage": "all_reduce", "kind": "collective", "members": ""}
            one.note("sync", sync, at)
            stages = [("forward", 0, forward_ms), ("all_reduce", forward_ms, 890)]
            for step in range(100):
                one.step(step, at + 1000.0 * step, [*stages, ("optimizer", 890, 900)])
        one.in_order().write(folder)
    return folder


@pytest.mark.parametrize("own", [1, 2])
def test_a_rank_that_joins_later_counts_its_own_attempts(tmp_path: Path, own: int) -> None:
    ledger = ledger_of(joined_later(tmp_path / "logs", own))
    assert [of(ledger, "waiting", rank) for rank in range(2)] == [100 * 300_000_000, 0]
    assert of(ledger, "not recorded", 1) == 300 * 10**9
    assert [of(ledger, row, 1) for row in ("launcher", "launch", "restart")] == [0, 0, 0]
    assert [(one.rank, one.row) for one in ledger.culprits] == [(1, "compute")]
    assert [one.number for one in ledger.attempts] == [1, 2]


def test_an_attempt_without_a_stage_stays_one(tmp_path: Path) -> None:
    ledger = ledger_of(joined_later(tmp_path / "logs", 1, died=True))
    assert [(one.number, one.first_step) for one in ledger.attempts] == [(1, 0), (2, None), (3, 0)]
    assert of(ledger, "waiting") == 100 * 300_000_000
    assert of(ledger, "not recorded", 1) == 300 * 10**9


def test_an_attempt_in_which_one_rank_did_nothing_is_that_of_the_others(tmp_path: Path) -> None:
    """Rank 1 dies at once in the first attempt, in which rank 0 does steps; rank 2 joins later."""
    folder = tmp_path / "logs"
    for rank, attempts in ((0, {1: 10, 2: 300}), (1, {1: 5, 2: 300}), (2, {1: 300})):
        one = RankCsv(rank, 3)
        for attempt, at_s in attempts.items():
            one.process(attempt, 1000.0 * at_s)
            one.note("run", {"version": 1}, 1000.0 * at_s)
            for step in range(0 if at_s == 5 else 100):
                one.step(step, 1000.0 * (at_s + step), [("input", 0, 100), ("forward", 100, 900)])
        one.write(folder)
    ledger = ledger_of(folder)
    assert [one.number for one in ledger.attempts] == [1, 2]
    assert of(ledger, "not recorded", 1) == of(ledger, "restart", 2) == 0
    assert of(ledger, "not recorded", 2) == 290 * 10**9  # since the first stage of the job


def test_a_rank_that_comes_with_its_own_first_attempt_was_not_there(tmp_path: Path) -> None:
    """On the host of the others, and without `my_utils run`."""
    folder = tmp_path / "logs"
    Run(ranks=2, steps=60).write(folder)
    Run(ranks=3, steps=60, first_step=60, attempt=2, start_ns=LATER_NS).write(folder)
    by_the_run = ledger_of(folder)
    file = folder / "profile_rank_2.csv"
    file.write_text(file.read_text().replace("attempt=2", "attempt=1"))
    assert ledger_of(folder).ns.tolist() == by_the_run.ns.tolist()
    assert of(by_the_run, "not recorded", 2) == LATER_NS - START_NS


def test_a_rank_that_is_gone_on_a_host_of_another_time(tmp_path: Path) -> None:
    """Its only attempt is the first one, though its clock is hours ahead."""
    folder = tmp_path / "logs"
    for rank, host, attempts in ((0, "A", {1: 0, 2: 200_000}), (1, "B", {1: 7_200_000})):
        one = RankCsv(rank, 2 - rank, host)
        for attempt, at in attempts.items():
            one.world_size = 2 if attempt == 1 else 1
            one.process(attempt, at)
            one.note("run", {"version": 1}, at)
            one.note("sync", {"stage": "all_reduce", "kind": "collective", "members": ""}, at)
            enter = 400 + 300 * rank
            for step in range(100):
                stages = [("forward", 0.0, enter), ("all_reduce", enter, 890.0)]
                one.step(step, at + 1000.0 * step, [*stages, ("optimizer", 890, 900)])
        one.write(folder)
    ledger = ledger_of(folder)
    assert of(ledger, "waiting") == 100 * 300_000_000
    assert of(ledger, "not recorded", 1) == pytest.approx(200e9, abs=1e9)


def test_the_newest_minutes_of_a_rank_that_joined_later(tmp_path: Path) -> None:
    shares = []
    for own in (1, 2):
        reader = LedgerReader()
        verdict_of([str(joined_later(tmp_path / str(own), own))], ledger=reader)
        found = reader.recent(60.0)
        assert found is not None
        shares.append(found.shares)
    assert shares[0] == shares[1] and shares[0]["waiting"] == pytest.approx(0.15, abs=0.002)


def test_diff_says_how_goodput_differs(tmp_path: Path) -> None:
    Run(ranks=2, steps=60).write(tmp_path / "one")
    restarted(tmp_path / "two", 40)
    found = compare_files([str(tmp_path / "one")], [str(tmp_path / "two")]).found
    ledgers = [ledger_of(tmp_path / name) for name in ("one", "two")]
    shares = {one.row: (one.a, one.b) for one in found.ledger}
    assert shares["goodput"] == tuple(one.goodput for one in ledgers)
    assert shares["in vain"] == tuple(one.share("in vain") for one in ledgers)
    assert sum(a for a, _ in shares.values()) == pytest.approx(1 + ledgers[0].goodput)
    (line,) = (line for line in found.lines() if "goodput" in line)
    assert f"restart 0.0 % and {100 * ledgers[1].share('restart'):.1f} %" in line


# --- a hang ---


@pytest.mark.parametrize(
    ("step_s", "still_s", "row"),
    [(1.0, 29, "other code"), (1.0, 31, "hang"), (120.0, 590, "other code"), (120.0, 610, "hang")],
)
def test_a_process_hangs_after_thirty_seconds_and_five_mean_steps(
    tmp_path: Path, step_s: float, still_s: int, row: str
) -> None:
    """As `my_utils why` says it. The next process keeps the last sign of the one that was killed,
    which came so long after its last progress."""
    one = RankCsv()
    one.process()
    one.note("run", {"version": 1})
    ms = 1000 * step_s
    dead_ms = 20 * ms + 1000 * still_s
    for attempt, at in ((1, 0.0), (2, dead_ms + 100)):
        if attempt == 2:
            seen = {"dead_seen_ns": START_NS + round(dead_ms * 1e6)}
            one.note("process", {"pid": 2, "rank": 0, "world_size": 1, "attempt": 2, **seen}, at)
            one.node = 2 << 32
        for step in range(20):
            stages = [("input", 0, 0.1 * ms), ("forward", 0.1 * ms, 0.9 * ms)]
            one.step(step, at + step * ms, [*stages, ("optimizer", 0.9 * ms, ms)])
    ledger = ledger_of(one.write(tmp_path / "logs"))
    assert of(ledger, row) == still_s * 10**9
    assert of(ledger, "hang") + of(ledger, "other code") == still_s * 10**9


# --- what was not recorded ---


def test_ranks_without_files_are_not_recorded(tmp_path: Path) -> None:
    folder = Run(ranks=4, steps=60).write(tmp_path / "logs")
    (folder / "profile_rank_2.csv").unlink()
    ledger = ledger_of(folder)
    assert ledger.ranks == [0, 1, 3, 2]
    assert of(ledger, "not recorded", 2) == ledger.wall_ns[3] > 0
    assert ledger_of(folder, ranks={0, 1}).ranks == [0, 1]


def test_steps_whose_rows_were_lost_are_not_recorded(tmp_path: Path) -> None:
    folder = Run(ranks=1, steps=60, synchronises=False).write(tmp_path / "logs")
    file = folder / "profile_rank_0.csv"
    rows = file.read_text().splitlines(keepends=True)
    kept = [row for row in rows if row == HEADER or not 20 <= int(row.split(",")[3]) < 30]
    last = kept[-1].split(",")[0]
    kept.append(
        f'{last},-,node,0,my_utils.dropped,INSTANT,,"count=80,reason=not_written,'
        'first_step=20,last_step=29"\n'
    )
    whole = ledger_of(folder)
    file.write_text("".join(kept))
    ledger = ledger_of(folder)
    moments = [int(row.split(",")[0].replace(".", "")) for row in rows[1:]]
    steps = [int(row.split(",")[3]) for row in rows[1:]]
    before = max(at for at, step in zip(moments, steps, strict=True) if step == 19)
    behind = min(at for at, step in zip(moments, steps, strict=True) if step == 30)
    assert of(ledger, "not recorded") - of(whole, "not recorded") == behind - before


# --- clocks ---


def test_a_step_of_the_clock_is_no_time(tmp_path: Path) -> None:
    folder = Run(ranks=1, steps=60, synchronises=False).write(tmp_path / "logs")
    file = folder / "profile_rank_0.csv"
    before = ledger_of(folder)
    rows = file.read_text().splitlines(keepends=True)
    middle = len(rows) // 2
    moved = [_moved(row, 3) for row in rows[middle:]]
    step = moved[0].split(",")[0]
    row = f'{step},-,node,0,my_utils.clock_step,INSTANT,,"delta_ns=3000000000,total_ns=3000000000"'
    file.write_text("".join([*rows[:middle], f"{row}\n", *moved]))
    after = ledger_of(folder)
    assert after.ns.tolist() == before.ns.tolist()


def test_hosts_whose_clocks_are_hours_apart(tmp_path: Path) -> None:
    run = Run(ranks=2, steps=60, ranks_a_host=1).slower(2, "forward", rank=1)
    folder = run.write(tmp_path / "logs")
    same = ledger_of(folder)
    file = folder / "profile_rank_1.csv"
    header, *rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join([header, *(_moved(row, 7200) for row in rows)]))
    apart = ledger_of(folder)
    assert of(apart, "compute", 1) == of(same, "compute", 1)
    assert apart.wall_ns.tolist() == pytest.approx(same.wall_ns.tolist(), abs=10**9)
    assert apart.goodput == pytest.approx(same.goodput, abs=0.01)


def _moved(row: str, seconds: int) -> str:
    moment, rest = row.split(".", 1)
    return f"{int(moment) + seconds}.{rest}"


# --- a device ---


@pytest.mark.parametrize(
    ("input_ms", "gpu_ms"), [(0.5, 12.0), (9.0, 6.0)], ids=["device bound", "input bound"]
)
def test_a_moment_counts_for_what_the_device_does(
    tmp_path: Path, input_ms: float, gpu_ms: float
) -> None:
    """The host launches for 1 ms a step, and does not wait for the device."""
    csv = RankCsv()
    csv.process()
    now = free = idle_ms = 0.0
    for step in range(60):
        csv.stage("input", step, now, now + input_ms)
        now += input_ms
        idle_ms += max(now - free, 0.0)
        for name, device_ms in (("forward", gpu_ms / 3), ("backward", gpu_ms * 2 / 3)):
            begin = max(free, now)
            free = begin + device_ms
            csv.stage(name, step, now, now + 0.5, gpu=(begin, free))
            now += 0.5
    ledger = ledger_of(csv.in_order().write(tmp_path / "logs"))
    assert int(ledger.wall_ns[0]) == pytest.approx(free * 1e6, abs=10)
    warm_ns = of(ledger, "warm-up") + of(ledger, "launch")
    assert of(ledger, "compute") == pytest.approx(60 * gpu_ms * 1e6, abs=warm_ns + 1000)
    assert of(ledger, "input") == pytest.approx(idle_ms * 1e6, abs=warm_ns + 1000)


# --- anything ---


FAR = (0, -1, 2**31, 2**53, 2**62 - 1, -(2**62), 2**63 - 1, -(2**63), 10**20)
OWN_ROWS = ("process", "clock_step", "file", "run", "sync", "dropped", "run_end", "time_offset")
KEYS = (
    "rank", "attempt", "began_ns", "dead_seen_ns", "total_ns", "delta_ns", "did", "path", "stage",
    "members", "kind", "count", "reason", "first_step", "last_step", "offset_ns", "world_size",
)  # fmt: skip


def damaged(rows: list[str], random: np.random.Generator) -> Sequence[str]:
    """Rows that are missing, doubled, out of order, of another attempt, or with numbers that no
    writer writes."""
    found = [row for row in rows if random.random() > 0.02]
    for _ in range(int(random.integers(0, 6))):
        at, to = (int(place) for place in random.integers(1, len(found), 2))
        what, far = int(random.integers(0, 6)), FAR[int(random.integers(0, len(FAR)))]
        fields = found[at].split(",")
        if what == 0:
            found.insert(to, found[at])
        elif what == 1:
            found[at], found[to] = found[to], found[at]
        elif what == 2:
            found[at] = _moved(found[at], int(random.integers(-5, 5)))
        elif what == 3:
            place = (0, 3, 6)[int(random.integers(0, 3))]
            fields[place] = f"{far}.5" if place == 0 else str(far)
            found[at] = ",".join(fields)
        elif what == 4:
            gpu = f"cuda_ms={abs(far)}.25,cuda_ts={START_NS // 10**9 + far % 10**6}.000000001"
            found[at] = found[at].replace("tid=", f"{gpu},tid=")
        else:
            pairs = ",".join(f"{key}={far}" for key in random.choice(KEYS, 5, replace=False))
            name = random.choice(OWN_ROWS)
            found[at] = f'{fields[0]},-,n,0,my_utils.{name},INSTANT,,"{pairs}"\n'
    return found


@pytest.mark.parametrize("seed", gate_runs({*map(str, range(0, 150, 4))}, range(150)))
def test_the_rows_add_up_whatever_the_files_hold(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    folder = tmp_path / "logs"
    ranks = int(random.integers(1, 4))
    start_ns, first_step = START_NS, 0
    for attempt in range(1, int(random.integers(2, 5))):
        run = Run(
            ranks=ranks, steps=int(random.integers(21, 50)), seed=seed + attempt,
            first_step=first_step, attempt=attempt, start_ns=start_ns, clock_ns=1e6,
            synchronises=bool(random.random() < 0.7),
        )  # fmt: skip
        run.write(folder)
        start_ns += int(random.integers(1, 20)) * 10**9
        first_step += int(random.integers(0, 60))
    for file in folder.glob("*.csv"):
        rows = file.read_text().splitlines(keepends=True)
        file.write_text("".join([rows[0], *damaged(rows[1:], random)]))
    reader = LedgerReader()
    verdict_of([str(folder)], ledger=reader)
    ledger = reader.ledger()
    shutil.rmtree(folder)
    if ledger is None:  # no rank has two steps that belong together
        return
    adds_up(ledger)
    data = json.loads(json.dumps(as_data(ledger)))
    assert [sum(row["ns"][at] for row in data["rows"]) for at in range(len(data["ranks"]))] == (
        data["wall_ns"]
    )
    assert [row["row"] for row in data["rows"]] == [row for row in ROWS if ledger.total_ns(row)]
