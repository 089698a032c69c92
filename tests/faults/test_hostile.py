"""Files made to do harm: each reader refuses them, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from my_utils import live
from my_utils.common.pickle_bounds import OutOfBounds, check_pickle
from my_utils.live.collectives import find_collectives
from my_utils.recordings.recording import RecordingError, load_recording

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


class TestRecordings:
    @pytest.mark.parametrize("data", HARMFUL.values(), ids=list(HARMFUL))
    def test_a_pickle_that_does_harm_is_refused(self, tmp_path: Path, data: bytes) -> None:
        import zipfile

        with zipfile.ZipFile(tmp_path / "x.pt", "w") as out:
            out.writestr("x/data.pkl", data)
            out.writestr("x/version", "3")
        with pytest.raises(RecordingError, match="made to do harm"):
            load_recording(tmp_path / "x.pt")
        with pytest.raises(OutOfBounds):
            check_pickle(data)
