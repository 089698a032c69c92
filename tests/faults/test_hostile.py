"""Files malicious: each reader refuses them, and no more."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from my_utils.analysis import live
from my_utils.analysis.live.collectives import Collectives, find_collectives
from my_utils.core.plain_files import OutOfBounds, check_pickle
from my_utils.core.run_files.ranks import find_ranks
from my_utils.core.run_files.state import Rank
from my_utils.tensors.recordings.recording import RecordingError, load_recording

from ..support import flight_dumps
from .hostile_files import HEARTBEAT, READERS, as_json, try_reader

pytest.importorskip("torch", reason="torch is not installed")

INPUTS = 25  # `make thorough` tries 5,000
SEED = 1


@pytest.mark.parametrize("reader", READERS)
def test_no_input_does_harm(reader: str, tmp_path: Path) -> None:
    result = try_reader(reader, INPUTS, SEED, tmp_path)
    assert not result.failure, result.failure
    assert result.tried == INPUTS


class TestHeartbeats:
    def found(self, folder: Path, **fields: object) -> tuple[list[int], list[str]]:
        data = as_json({**HEARTBEAT, **fields})
        (folder / "rank_0.heartbeat.json").write_bytes(data)
        snapshot = live.snapshot(folder)
        return snapshot["missing_ranks"], [problem["reason"] for problem in snapshot["problems"]]

    def test_no_list_is_made_of_a_world_that_cannot_be(self, tmp_path: Path) -> None:
        missing, problems = self.found(tmp_path, world_size=2**31 - 1)
        assert missing == []
        assert "world_size" in problems[0]

    @pytest.mark.parametrize("field", ["time", "time_offset", "began"])
    def test_a_time_beyond_all_bounds_is_a_problem(self, tmp_path: Path, field: str) -> None:
        for number in (1e999, -1e999, 1e300):
            _, (problem,) = self.found(tmp_path, **{field: number})
            assert field in problem or "out of range" in problem.lower()

    def test_a_large_world_is_seen(self, tmp_path: Path) -> None:
        missing, problems = self.found(tmp_path, world_size=5000)
        assert missing == list(range(1, 5000))
        assert problems == []


HARMFUL = {
    "a nested key": b"\x80\x02})" + b"\x85" * 2_000_000 + b"Ns.",
    "a key that holds itself": b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"Ns.",
}


SECONDS, MEMORY = 10, 512 << 20  # of the processor, and of addresses on top of what there is


def find_within_bounds(folder: Path, ranks: Sequence[Rank] = ()) -> Collectives:
    """In a child, which dies of what takes too long, and finds no memory for what is too large."""
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            addresses = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(resource.RLIMIT_AS, (addresses + MEMORY, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            used = resource.getrusage(resource.RUSAGE_SELF)
            until = int(used.ru_utime + used.ru_stime) + 1 + SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
            data = pickle.dumps(find_collectives(f"{folder}/dump_", ranks))
            with os.fdopen(says, "wb") as pipe:
                pipe.write(data)
        finally:
            os._exit(0)
    os.close(says)
    with os.fdopen(said, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    assert data, f"ended with {os.waitstatus_to_exitcode(status)}"
    found: Collectives = pickle.loads(data)
    return found


class TestFlightDumps:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "data",
        [
            *HARMFUL.values(),
            b"\x80\x02\x8e" + (2**31).to_bytes(8, "little"),
            b"\x80\x02r\xff\xff\xff\x7f",
        ],
        ids=[*HARMFUL, "more bytes than there are", "a place far away"],
    )
    def test_a_pickle_that_does_harm_is_a_problem(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "dump_0").write_bytes(data)
        (tmp_path / "dump_1").write_bytes(json.dumps({"version": "2.10"}).encode())
        found = find_collectives(f"{tmp_path}/dump_", [])
        assert [problem.file for problem in found.problems] == [f"{tmp_path}/dump_0"]
        assert found.dumps == [1]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"collective_seq_id": 2**31}, "have numbers from 1 to 2147483648"),
            ({"collective_seq_id": -(2**63)}, "have numbers from -9223372036854775808"),
            ({"input_sizes": [[2**63 - 1] * 30_000]}, "so many elements"),
            ({"input_sizes": [[-1]]}, "so many elements"),
        ],
        ids=["far", "far below", "a large shape", "a negative shape"],
    )
    def test_nothing_is_made_of_numbers_that_cannot_be(
        self, tmp_path: Path, change: dict[str, object], reason: str
    ) -> None:
        """Pickled too, where the parser is ours and the numbers are the same."""
        entries = flight_dumps.calls("all_reduce", "all_reduce", last="started")
        entries[1].update(change)
        content = {"version": "2.10", "entries": entries}
        (tmp_path / "dump_0").write_bytes(as_json(content))
        (tmp_path / "dump_1").write_bytes(pickle.dumps(content, protocol=2))
        found = find_within_bounds(tmp_path)
        assert len(found.problems) == 2
        assert all(reason in problem.reason for problem in found.problems)

    def test_a_rank_outside_its_group_waits_for_nobody(self, tmp_path: Path) -> None:
        entries = [flight_dumps.entry(0, "send 0->1", 1, state="started", peer=1)]
        groups = {"0": ("default_pg", [0, 1])}
        content = flight_dumps.content(entries, groups)
        (tmp_path / "dump_5").write_bytes(as_json(content))
        found = find_within_bounds(tmp_path)
        assert (found.problems, found.nodes) == ([], [])

    def test_many_pending_peers_of_a_large_group(self, tmp_path: Path) -> None:
        names = [f"recv 0<-{peer}" for peer in range(1, 15_000)]
        entries = [
            flight_dumps.entry(number, name, number + 1, state="started", peer=1)
            for number, name in enumerate(names)
        ]
        content = flight_dumps.content(entries, {"0": ("default_pg", list(range(120_000)))})
        (tmp_path / "dump_0").write_bytes(as_json(content))
        found = find_within_bounds(tmp_path)
        (node,) = found.nodes
        assert (node.call.name, node.unknown) == (names[0], [1])

    def test_many_groups_of_all_ranks(self, tmp_path: Path) -> None:
        entries = [
            flight_dumps.entry(
                number, "barrier", 1, state="started", group=(f"{number}", "default_pg")
            )
            for number in range(2000)
        ]
        (tmp_path / "dump_0").write_bytes(as_json({"version": "2.10", "entries": entries}))
        (tmp_path / "rank_0.heartbeat.json").write_bytes(
            as_json({**HEARTBEAT, "world_size": 1 << 20})
        )
        found = find_within_bounds(tmp_path, find_ranks(str(tmp_path)).ranks)
        assert found.problems == []
        (node,) = found.nodes
        assert len(node.group.members) == 1 << 20


class TestRecordings:
    @pytest.mark.parametrize("data", HARMFUL.values(), ids=list(HARMFUL))
    def test_a_pickle_that_does_harm_is_refused(self, tmp_path: Path, data: bytes) -> None:
        import zipfile

        with zipfile.ZipFile(tmp_path / "x.pt", "w") as out:
            out.writestr("x/data.pkl", data)
            out.writestr("x/version", "3")
        with pytest.raises(RecordingError, match="malicious"):
            load_recording(tmp_path / "x.pt")
        with pytest.raises(OutOfBounds):
            check_pickle(data)
