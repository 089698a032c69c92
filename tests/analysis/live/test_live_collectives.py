"""`python -m my_utils live --flight-recorder`: the collective that some ranks never entered, from
dumps in torch's form; and files that are not dumps, or worse."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.analysis.live.collectives import find_collectives
from my_utils.analysis.live.view import collective_lines
from my_utils.cli.live import EXIT_SUSPECTS, EXIT_USAGE

from ...conftest import RunPython
from ...support.flight_dumps import START_NS, calls, content, entry, write_dump
from ...support.live_ranks import beat, write_beats
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch


def seen(logs: Path, dumps: Path) -> dict[str, Any]:
    return dict(live.snapshot(logs, flight_recorder=dumps)["flight_recorder"])


def only(logs: Path, dumps: Path) -> dict[str, Any]:
    (stalled,) = seen(logs, dumps)["stalled"]
    return dict(stalled)


class TestWhoNeverEntered:
    @pytest.mark.parametrize("as_json", [False, True])
    def test_the_collective_and_the_ranks(self, logs: Path, dumps: Path, as_json: bool) -> None:
        for rank in (0, 1, 3):
            entries = calls("all_reduce", "broadcast", "all_reduce", last="started")
            write_dump(dumps, rank, entries, as_json=as_json)
        write_dump(dumps, 2, calls("all_reduce", "broadcast"), as_json=as_json)
        found = only(logs, dumps)
        assert (found["verdict"], found["name"], found["seq"]) == ("never entered", "all_reduce", 3)
        assert (found["description"], found["members"]) == ("default_pg", [0, 1, 2, 3])
        assert (found["waiting"], found["missing"], found["no_dump"]) == ([0, 1, 3], [2], [])
        assert found["sizes"] == "[16, 4] Float"
        assert found["place"] == "train.py:88 in step"
        assert found["since_ns"] == START_NS + 2_000_000
        assert found["started"] is True
        assert found["last_calls"]["2"]["name"] == "broadcast"
        assert found["last_calls"]["2"]["seq"] == 2

    def test_the_first_that_is_under_way_counts(self, logs: Path, dumps: Path) -> None:
        """Those that went on have more than one, all behind the first."""
        names = ["all_reduce"] * 5
        for rank in (0, 1):
            entries = calls(*names)
            for later in entries[2:]:
                later["state"] = "scheduled"
            write_dump(dumps, rank, entries, world=3)
        write_dump(dumps, 2, calls(*names[:2]), world=3)
        found = only(logs, dumps)
        assert (found["seq"], found["waiting"], found["missing"]) == (3, [0, 1], [2])

    def test_a_group_of_some_ranks(self, logs: Path, dumps: Path) -> None:
        pair = {"7": ("tp", [1, 3])}
        both = {"0": ("default_pg", [0, 1, 2, 3]), **pair}
        inner = calls("all_gather_single", last="started", group=("7", "tp"))
        write_dump(dumps, 1, calls("barrier") + inner, groups=both)
        write_dump(dumps, 3, calls("barrier"), groups=both)
        for rank in (0, 2):
            write_dump(dumps, rank, calls("barrier"))
        found = only(logs, dumps)
        assert (found["group"], found["description"]) == ("7", "tp")
        assert (found["members"], found["waiting"], found["missing"]) == ([1, 3], [1], [3])
        assert found["last_calls"] == {"3": None}

    def test_groups_of_one_name_and_other_ranks(self, logs: Path, dumps: Path) -> None:
        for rank in range(4):
            ranks = [rank // 2 * 2, rank // 2 * 2 + 1]
            state = "started" if rank == 2 else "completed"
            entries = calls("all_reduce", last=state, group=("7", "tp"))
            write_dump(dumps, rank, [] if rank == 3 else entries, groups={"7": ("tp", ranks)})
        found = only(logs, dumps)
        assert (found["members"], found["waiting"], found["missing"]) == ([2, 3], [2], [3])

    def test_numbers_of_a_group_that_differ_from_rank_to_rank(
        self, logs: Path, dumps: Path
    ) -> None:
        """Each process counts the groups that it is in. In rank 3 the group is the tenth, and the
        twelfth is another one; its newest calls are in neither."""
        groups = {"e": ("expert", [0, 1, 2, 3]), "t": ("tensor", [2, 3])}
        for rank, number in enumerate((12, 12, 10)):
            call = entry(40, "all_to_all", 5, state="started", group=("e", "expert"))
            write_dump(dumps, rank, [{**call, "pg_id": number}], groups=groups)
        status = {"10": 4, "12": 900}
        other = entry(80, "all_reduce", 7, group=("t", "tensor"))
        write_dump(dumps, 3, [other], groups=groups, enqueued=status)
        found = seen(logs, dumps)
        assert [one for one in found["causes"] if one["decided"]] == []
        (stalled,) = found["stalled"]
        assert (stalled["waiting"], stalled["unknown"]) == ([0, 1, 2], [3])

    def test_a_peer_whose_number_no_dump_explains(self, logs: Path, dumps: Path) -> None:
        """Dumps of older versions of torch do not list who is in a group."""
        write_beats(logs, *(beat(rank, 9, "iter", world_size=4) for rank in range(4)))
        pipeline = ("1", "pipeline")
        for rank in (0, 1):
            call = entry(5, f"send {rank}->{rank + 1}", 4, state="started", peer=1, group=pipeline)
            write_dump(dumps, rank, [call], groups={})
        call = entry(5, "recv 2<-3", 4, state="started", peer=1, group=pipeline)
        write_dump(dumps, 2, [call], groups={})
        assert {rank for one in seen(logs, dumps)["causes"] for rank in one["ranks"]} == {3}

    def test_a_rank_in_no_call_beside_a_lost_dump(self, logs: Path, dumps: Path) -> None:
        """Rank 2 waits for rank 1, of which nobody knows whether it waits for rank 0."""
        write_dump(dumps, 0, [entry(0, "send 0->1", 1, peer=1)])
        for rank in (2, 3):
            call = entry(0, f"recv {rank}<-{rank - 1}", 1, state="started", peer=1)
            write_dump(dumps, rank, [call])
        (cause,) = seen(logs, dumps)["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("no dump", [0, 1], False)

    def test_two_lost_dumps_of_a_pipeline(self, logs: Path, dumps: Path) -> None:
        """Rank 2 waits for rank 1, which may wait for rank 0."""
        write_beats(logs, *(beat(rank, 9, "iter", world_size=4) for rank in range(4)))
        for rank in (2, 3):
            call = entry(0, f"recv {rank}<-{rank - 1}", 1, state="started", peer=1)
            write_dump(dumps, rank, [call])
        (cause,) = seen(logs, dumps)["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("no dump", [0, 1], False)

    def test_a_rank_without_a_dump(self, logs: Path, dumps: Path) -> None:
        write_beats(logs, beat(0, 3, "iter", world_size=3))
        for rank in (0, 1):
            write_dump(dumps, rank, calls("all_reduce", last="started"), world=3)
        data = seen(logs, dumps)
        assert (data["dumps"], data["ranks_without_dump"]) == ([0, 1], [2])
        (found,) = data["stalled"]
        assert (found["missing"], found["no_dump"]) == ([], [2])

    def test_all_are_in_it(self, logs: Path, dumps: Path) -> None:
        for rank in range(2):
            write_dump(dumps, rank, calls("all_reduce", last="started"), world=2)
        found = only(logs, dumps)
        assert (found["verdict"], found["missing"]) == ("not finished", [])
        assert found["waiting"] == [0, 1]

    def test_none_is_under_way(self, logs: Path, dumps: Path, run_python: RunPython) -> None:
        for rank in range(2):
            write_dump(dumps, rank, calls("all_reduce", "barrier"), world=2)
        assert seen(logs, dumps)["stalled"] == []
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(dumps)
        )
        assert f"no collective is under way, by 2 dumps in {dumps}" in done.stdout.splitlines()

    def test_a_dump_that_does_not_reach_back(self, logs: Path, dumps: Path) -> None:
        """Its ring is full of another group's calls: torch's status of the group says it."""
        tp = {"7": ("tp", [0, 1, 2])}
        write_dump(
            dumps, 0, calls(*["all_reduce"] * 5, last="started", group=("7", "tp")), groups=tp
        )
        busy = [entry(record, "send 1->0", record, peer=0) for record in (900, 901)]
        write_dump(dumps, 1, busy, groups=tp, enqueued={"7": 4})
        write_dump(dumps, 2, busy, groups=tp)
        found = only(logs, dumps)
        assert (found["missing"], found["unknown"]) == ([1], [2])

    def test_what_a_rank_called_later_does_not_count(self, logs: Path, dumps: Path) -> None:
        groups = {"7": ("tp", [0, 1]), "8": ("dp", [0, 1])}
        later = entry(5, "all_reduce", 1, state="started", group=("7", "tp"))
        first = entry(2, "broadcast", 1, state="started", group=("8", "dp"))
        write_dump(dumps, 0, [first, later], groups=groups)
        write_dump(dumps, 1, [], groups=groups)
        found = seen(logs, dumps)
        assert [item["description"] for item in found["stalled"]] == ["dp"]
        (cause,) = found["causes"]
        assert (cause["kind"], cause["ranks"]) == ("never entered", [1])
        assert (cause["decided"], cause["waiting"]) == (True, [0])


class TestOtherVerdicts:
    def test_different_calls_under_one_number(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        for rank in (0, 1):
            write_dump(dumps, rank, calls("barrier", "all_reduce", last="started"), world=3)
        write_dump(dumps, 2, calls("barrier", "broadcast", last="started"), world=3)
        found = only(logs, dumps)
        assert (found["verdict"], found["seq"]) == ("different calls", 2)
        assert found["calls"] == {"all_reduce of 64 Float": [0, 1], "broadcast of 64 Float": [2]}
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(dumps)
        )
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("! "))
        assert line.startswith(
            "! rank 2 took another path: broadcast of 64 Float by rank 2, "
            "all_reduce of 64 Float by ranks 0-1 under #2 "
        )

    def test_they_wait_in_what_they_called(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        """And not in what the first called that came. The recorder's own lines are nobody's."""
        write_dump(dumps, 1, calls("barrier", last="started"), world=3)
        for rank in (0, 2):
            (call,) = calls("all_reduce", last="started")
            frame = {"name": "timed", "filename": "/x/my_utils/run/stages/meetings.py", "line": 284}
            call["frames"].insert(1, frame)
            call["time_created_ns"] += 10**9
            write_dump(dumps, rank, [call], world=3)
        (cause,) = seen(logs, dumps)["causes"]
        call = cause["call"]
        assert (call["name"], call["place"]) == ("all_reduce", "train.py:88 in step")
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(dumps)
        )
        assert "  2 ranks wait: 2 in all_reduce of the default group" in done.stdout.splitlines()

    def test_different_numbers_of_elements(self, logs: Path, dumps: Path) -> None:
        for rank in range(2):
            sizes = [[8, 2 + rank]]
            write_dump(dumps, rank, calls("all_reduce", last="started", sizes=sizes), world=2)
        assert only(logs, dumps)["calls"] == {
            "all_reduce of 16 Float": [0],
            "all_reduce of 24 Float": [1],
        }

    def test_sizes_may_differ_where_torch_lets_them(self, logs: Path, dumps: Path) -> None:
        for rank in range(2):
            entries = calls("all_to_all_v_single", "scatter", sizes=[[1 + rank]])
            write_dump(dumps, rank, entries, world=2)
        assert seen(logs, dumps)["stalled"] == []

    def test_calls_that_were_made_as_one(self, logs: Path, dumps: Path) -> None:
        """Only the record of the whole has a state."""
        for rank in range(2):
            parts = [entry(i, "all_reduce", 1, state="scheduled") for i in range(3)]
            whole = entry(3, "coalesced", 1, state="completed", sizes=[])
            write_dump(dumps, rank, [*parts, whole], world=2)
        assert seen(logs, dumps)["stalled"] == []


class TestBetweenTwoRanks:
    def test_a_receive_that_was_never_sent(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        received = entry(0, "recv 1<-0", 1, peer=0)
        waits = entry(1, "recv 1<-0", 2, peer=0, state="started")
        write_dump(dumps, 1, [received, waits], world=2)
        write_dump(dumps, 0, [entry(0, "send 0->1", 1, peer=1)], world=2)
        found = only(logs, dumps)
        assert (found["name"], found["verdict"]) == ("recv 1<-0", "never entered")
        assert (found["waiting"], found["missing"]) == ([1], [0])
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(dumps)
        )
        call = "recv 1<-0 #2 [16, 4] Float at train.py:88 in step of the default group of ranks 0-1"
        assert f"! rank 0 never entered {call}, since " in done.stdout

    def test_a_send_that_is_under_way(self, logs: Path, dumps: Path) -> None:
        write_dump(dumps, 0, [entry(0, "send 0->1", 1, peer=1, state="started")], world=2)
        write_dump(dumps, 1, [entry(0, "recv 1<-0", 1, peer=0)], world=2)
        found = only(logs, dumps)
        assert (found["verdict"], found["waiting"]) == ("not finished", [0])

    def test_what_a_full_ring_forgot_has_ended(self, logs: Path, dumps: Path) -> None:
        """So the send of a receive that is under way is still to come."""
        write_dump(dumps, 1, [entry(700, "recv 1<-0", 60, peer=0, state="started")], world=2)
        write_dump(dumps, 0, [entry(800, "barrier", 5)], world=2)
        found = only(logs, dumps)
        assert (found["missing"], found["unknown"]) == ([0], [])

    def test_sends_and_receives_that_were_called_as_one(self, logs: Path, dumps: Path) -> None:
        """A ring of three: rank 0 waits for rank 2 by the second of its two."""
        for rank in (0, 1):
            after, before = (rank + 1) % 3, (rank - 1) % 3
            batch = [
                entry(0, f"send {rank}->{after}", 1, peer=after, state="scheduled"),
                entry(1, f"recv {rank}<-{before}", 1, peer=before, state="scheduled"),
                entry(2, "coalesced", 1, peer=after, state="started", sizes=[]),
            ]
            write_dump(dumps, rank, batch, world=3)
        write_dump(dumps, 2, [], world=3)
        (cause,) = seen(logs, dumps)["causes"]
        assert (cause["kind"], cause["ranks"]) == ("never entered", [2])
        assert cause["waiting_directly"] == [0, 1]

    def test_two_that_send_and_receive_for_long(self, logs: Path, dumps: Path) -> None:
        write_dump(dumps, 0, [entry(0, "send 0->1", 1, peer=1, state="started")], world=2)
        write_dump(dumps, 1, [entry(0, "recv 1<-0", 1, peer=0, state="started")], world=2)
        (cause,) = seen(logs, dumps)["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("inside", [0, 1], False)

    def test_ranks_are_those_of_the_group(self, logs: Path, dumps: Path) -> None:
        pair = {"7": ("pp", [2, 5])}
        waits = entry(0, "recv 1<-0", 1, peer=0, state="started", group=("7", "pp"))
        write_dump(dumps, 5, [waits], groups=pair)
        write_dump(dumps, 2, [], groups=pair)
        found = only(logs, dumps)
        assert (found["waiting"], found["missing"]) == ([5], [2])


class TestBesideTheRanks:
    def test_the_stage_of_the_rank_that_never_entered(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        write_beats(logs, *(beat(rank, 9, "iter", "all_reduce") for rank in (0, 1)))
        write_beats(logs, beat(2, 9, "iter", "data"))
        for rank in (0, 1):
            write_dump(dumps, rank, calls("barrier", "all_reduce", last="started"), world=3)
        write_dump(dumps, 2, calls("barrier"), world=3)
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--hung", "30", "--flight-recorder", str(dumps)
        )
        assert done.returncode == EXIT_SUSPECTS
        lines = done.stdout.splitlines()
        call = (
            "all_reduce #2 [16, 4] Float at train.py:88 in step of the default group of ranks 0-2"
        )
        place = lines.index(f"who holds the others up, by 3 dumps in {dumps}:")
        assert lines[place + 1].startswith(f"! rank 2 never entered {call}, since ")
        assert lines[place + 1].endswith(" (rank 2 is in iter > data)")
        assert lines[place + 2] == "  2 ranks wait: 2 in all_reduce of the default group"

    def test_dumps_of_an_earlier_run(self, logs: Path, dumps: Path) -> None:
        write_beats(logs, beat(0, 9, "iter", began=START_NS / 1e9, world_size=2))
        old = write_dump(dumps, 0, calls("all_reduce", last="started"), world=2)
        os.utime(old, (START_NS / 1e9 - 3600, START_NS / 1e9 - 3600))
        data = seen(logs, dumps)
        assert (data["dumps"], data["stalled"]) == ([], [])
        assert data["problems"] == [{"file": str(old), "reason": "written before rank 0 began"}]

    def test_dumps_of_the_attempt_before(self, logs: Path, dumps: Path) -> None:
        """The job was started again some seconds after them, with fewer ranks; rank 0 has not
        replaced its dump, as it is stopped."""
        began = START_NS / 1e9 + 30
        write_beats(logs, *(beat(rank, 9, "iter", began=began, world_size=2) for rank in (0, 1)))
        waits = calls("all_reduce", "broadcast", last="started")
        for rank in (0, 1, 2):
            path = write_dump(dumps, rank, waits, world=3)
            os.utime(path, (began - 5, began - 5))
        newest = [{**call, "time_created_ns": START_NS + 35 * 10**9} for call in waits]
        write_dump(dumps, 1, newest, world=2)
        data = seen(logs, dumps)
        (cause,) = data["causes"]
        assert (cause["kind"], cause["ranks"], data["dumps"]) == ("no dump", [0], [1])
        assert [one["reason"] for one in data["problems"]] == [
            "written before rank 0 began",
            "of rank 2, in a run of 2 ranks",
        ]

    def test_a_dump_of_a_hang_that_is_over(self, logs: Path, dumps: Path) -> None:
        """An earlier job had left it in the same folder, and rank 3 has written none since."""
        for rank in range(3):
            write_dump(dumps, rank, calls(*["all_reduce"] * 40, last="started"))
        hour_s = 3600.0
        waits = calls("all_reduce", "all_reduce", last="started")
        earlier = [{**call, "time_created_ns": START_NS - 2 * 3600 * 10**9} for call in waits]
        old = write_dump(dumps, 3, earlier)
        os.utime(old, (START_NS / 1e9 - hour_s, START_NS / 1e9 - hour_s))
        found = seen(logs, dumps)
        (cause,) = found["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("no dump", [3], False)
        assert cause["reasons"][0].endswith(
            "of ranks 0-3 for rank 3, whose dump is lost or does not say it"
        )
        assert (cause["waiting"], found["stale"]) == ([0, 1, 2], [3])

    def test_hundreds_of_them_by_several_processes(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        for rank in range(100):
            names = ["all_reduce"] * (20 if rank != 41 else 19)
            last = "started" if rank != 41 else "completed"
            write_dump(dumps, rank, calls(*names, last=last), world=100)
        arguments = ["--once", "--json", "--flight-recorder", str(dumps)]
        done = run_python("-m", "my_utils", "live", str(logs), *arguments)
        (found,) = loads_checked("live", done.stdout)["flight_recorder"]["stalled"]
        assert (found["seq"], found["missing"], len(found["waiting"])) == (20, [41], 99)


class TestText:
    @pytest.mark.parametrize("world", [16, pytest.param(4096, marks=pytest.mark.slow)])
    def test_six_lines_are_enough(self, logs: Path, dumps: Path, world: int) -> None:
        """Half of the groups of eight wait, each for its sixth rank."""
        for rank in range(world):
            first = rank // 8 * 8
            waits, holds = first % 16 == 0, rank % 8 == 5
            group = f"{first}", "TENSOR_MODEL_PARALLEL_GROUP"
            names = ["all_reduce"] * (1 if waits and holds else 2)
            last = "started" if waits and not holds else "completed"
            groups = {group[0]: (group[1], list(range(first, first + 8)))}
            entries = calls(*names, last=last, group=group)
            write_dump(dumps, rank, entries, groups=groups, as_json=True)
        lines = collective_lines(find_collectives(str(dumps), ()), ())
        assert len(lines) <= 6, lines
        call = "all_reduce #2 [16, 4] Float at train.py:88 in step of the tensor-parallel group"
        assert lines[1].startswith(f"! rank 5 never entered {call} of ranks 0-7, since ")
        waiting = world // 16 * 7
        assert f"  {waiting} ranks wait: {waiting} in all_reduce of tensor-parallel groups" in lines
        assert world == 16 or "; and 253 more, see --json" in lines[3]


class TestFiles:
    def test_the_rank_is_in_the_name(self, logs: Path, dumps: Path) -> None:
        good = write_dump(dumps, 3, calls("barrier"))
        for name in ("nccl_trace_rank_12", "7", "host-1_5.pkl", "x_6.json"):
            (dumps / name).write_bytes(good.read_bytes())
        (dumps / "notes.txt").write_text("no number", encoding="utf-8")
        assert seen(logs, dumps)["dumps"] == [3, 5, 6, 7, 12]

    def test_the_beginning_of_their_paths(self, logs: Path, dumps: Path) -> None:
        good = write_dump(dumps, 3, calls("barrier"))
        (dumps / "other_4").write_bytes(good.read_bytes())
        assert seen(logs, dumps / "trace_")["dumps"] == [3]

    def test_the_newest_of_a_rank(self, logs: Path, dumps: Path) -> None:
        old = write_dump(dumps, 0, calls("all_reduce", last="started"), world=1)
        old.rename(dumps / "old_0")
        os.utime(dumps / "old_0", (1e9, 1e9))
        write_dump(dumps, 0, calls("all_reduce"), world=1)
        assert seen(logs, dumps)["stalled"] == []

    def test_no_directory(self, logs: Path, dumps: Path, run_python: RunPython) -> None:
        gone = dumps / "gone" / "trace_"
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(gone)
        )
        assert done.returncode == EXIT_USAGE
        assert done.stderr == f"my_utils live: error: {dumps}/gone: No such file or directory\n"


def test_the_process_that_reads_imports_little(run_python: RunPython) -> None:
    """Of what takes longer to import than a dump to read."""
    program = """
import sys
sys.path[:] = sys.argv[1:]
import my_utils.core.reader_child, my_utils.analysis.live.flight_files
print(sorted({"subprocess", "pathlib", "logging", "urllib.parse"} & set(sys.modules)))
"""
    done = run_python("-I", "-S", "-c", program, *sys.path)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


class Evil:
    """Makes a file when it is unpickled as pickle does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.call, (["touch", str(self.path)],)


class TestBadFiles:
    def reason(self, logs: Path, dumps: Path, data: bytes) -> str:
        """Why the file is left out, beside which a good one is read."""
        write_dump(dumps, 1, calls("barrier"), world=2)
        (dumps / "trace_0").write_bytes(data)
        found = seen(logs, dumps)
        assert found["dumps"] == [1]
        ((path, reason),) = (problem.values() for problem in found["problems"])
        assert path == str(dumps / "trace_0")
        return str(reason)

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_nothing_is_executed(self, logs: Path, dumps: Path, protocol: int) -> None:
        planted = dumps.parent / "planted"
        data = pickle.dumps(
            {**content(calls("barrier"), {}), "extra": Evil(planted)}, protocol=protocol
        )
        reason = self.reason(logs, dumps, data)
        assert ".call: not a dump of the flight recorder" in reason
        assert not planted.exists()
        pickle.loads(data)
        assert planted.exists(), "or else nothing was proven"

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"\x80\x02cos\nsystem\n(S'true'\ntR.", "it names os.system"),
            (b"\x80\x02(S'true'\nios\nsystem\n.", "it names os.system"),
            (b"\x80\x02cbuiltins\neval\n.", "it names builtins.eval"),
            (b"\x80\x02ccopyreg\n_reconstructor\n.", "it names copyreg._reconstructor"),
            (b"\x80\x02K\x01Q.", "it refers to objects elsewhere"),
            (b"\x80\x02\x82\x01.", "unregistered extension code 1"),
            (b"\x80\x02}.", "not a dump of the flight recorder"),
            (b"\x80\x02K\x01.", "not a dump of the flight recorder"),
            (b"", "neither a pickle nor JSON"),
            (b"MZ\x90", "neither a pickle nor JSON"),
            (b'{"version": "2.10", "entries"', "Input data was truncated"),
            (b'{"version": "3.0", "entries": []}', "form '3.0'; this program reads form 2"),
            (
                b'{"version": "2.10", "entries": [{}]}',
                "missing required field `record_id` - at `$.entries[0]`",
            ),
            (b'{"version": "2.10", "entries": 5}', "Expected `array`, got `int` - at `$.entries`"),
            # Python 3.14 goes deeper, and comes to the end of it.
            (b'{"a":' * 100_000, "recursion" if sys.version_info < (3, 14) else "truncated"),
        ],
    )
    def test_what_is_no_dump(self, logs: Path, dumps: Path, data: bytes, reason: str) -> None:
        assert reason in self.reason(logs, dumps, data)

    @pytest.mark.parametrize("as_json", [False, True])
    @pytest.mark.parametrize("created_ns", [-1e300, 10**400, -(10**400), -1])
    def test_a_moment_that_is_none(
        self, logs: Path, dumps: Path, created_ns: float, as_json: bool
    ) -> None:
        (waiting,) = calls("barrier", last="started")
        data = content([{**waiting, "time_created_ns": created_ns}], {})
        found = json.dumps(data).encode() if as_json else pickle.dumps(data, protocol=2)
        assert self.reason(logs, dumps, found).endswith(" - at `$.entries[0].time_created_ns`")

    @pytest.mark.slow
    def test_a_dump_that_was_cut_anywhere(self, logs: Path, dumps: Path) -> None:
        whole = write_dump(dumps, 0, calls("barrier"), world=1).read_bytes()
        for length in range(0, len(whole), 23):
            (dumps / "trace_0").write_bytes(whole[:length])
            data = seen(logs, dumps)
            assert (data["dumps"], len(data["problems"])) == ([], 1)

    def test_a_stack_that_is_none(self, logs: Path, dumps: Path) -> None:
        """Only those of calls that are shown are looked through."""
        (waiting,) = calls("barrier", last="started")
        data = content([{**waiting, "frames": [{"name": "step", "line": 88}]}], {})
        reason = self.reason(logs, dumps, pickle.dumps(data, protocol=2))
        assert reason.endswith("missing required field `filename` - at `$[0]`")

    def test_a_small_one_takes_little_memory(self, logs: Path, dumps: Path) -> None:
        """Not as much as a dump may have: where memory is filled first, that took half a second."""
        write_dump(dumps, 0, calls("barrier"), world=1)
        tracemalloc.start()
        try:
            assert seen(logs, dumps)["dumps"] == [0]
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()

    def test_what_is_no_file(self, logs: Path, dumps: Path) -> None:
        os.mkfifo(dumps / "trace_0")
        (dumps / "trace_1").mkdir()
        (dumps / "trace_2").symlink_to(dumps / "gone")
        data = seen(logs, dumps)
        assert (data["dumps"], data["problems"]) == ([], [])

    def test_one_that_asks_for_all_the_memory(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        """By a place in the pickle's table that makes it 64 GiB long; where many are read."""
        for rank in range(1, 80):
            write_dump(dumps, rank, calls("barrier"), world=80)
        (dumps / "trace_0").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
        arguments = ["--once", "--json", "--flight-recorder", str(dumps)]
        found = json.loads(run_python("-m", "my_utils", "live", str(logs), *arguments).stdout)
        (problem,) = found["flight_recorder"]["problems"]
        # Python 3.15 keeps such a table without the places between.
        expected = (
            "MemoryError" if sys.version_info < (3, 15) else "missing required field `version`"
        )
        assert problem["reason"].endswith(expected)
        assert len(found["flight_recorder"]["dumps"]) == 79

    def test_texts_do_not_steer_the_terminal(
        self, logs: Path, dumps: Path, run_python: RunPython
    ) -> None:
        write_dump(dumps, 0, calls("\x1b[31mred\x07", last="started"), world=2)
        done = run_python(
            "-m", "my_utils", "live", str(logs), "--once", "--flight-recorder", str(dumps)
        )
        assert r"\x1b[31mred\x07" in done.stdout
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout
