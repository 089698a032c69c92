"""What is said of files that ranks have left: since when, which tensor, where, on which ranks."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from my_utils.core.run_files.files import REPLICAS_FOLDER
from my_utils.tensors.replicas.compare import compare_replicas, replica_lines
from my_utils.tensors.replicas.file import ClassData, SumsReader, TrackedData
from my_utils.tensors.replicas.result import ReplicasData

from ...support.planted_replicas import COLUMNS, ROWS, SHAPE, PlantedRank, flipped, parameters

pytestmark = pytest.mark.no_torch

NAMES = ("embed.weight", "layers.3.mlp.weight", "head.weight")
VALUES = {name: random.Random(name).randbytes(4 * ROWS * COLUMNS) for name in NAMES}

Drift = Callable[[int, int], dict[str, bytes]]
"""By rank and step: the tensors that are other than `VALUES`."""


def plant(
    folder: Path, steps: range, drift: Drift, *, world: int = 4, keeps: bool = True
) -> list[PlantedRank]:
    classes = [parameters(f"0-{world - 1}", *NAMES)]
    ranks = [PlantedRank(folder, rank, classes, world_size=world) for rank in range(world)]
    for step in steps:
        for number, rank in enumerate(ranks):
            rank.check(step, {**VALUES, **drift(number, step)}, keeps=keeps)
    for rank in ranks:
        rank.close()
    return ranks


def at(rank: int, first: int, name: str = NAMES[1], row: int = 41) -> Drift:
    """One element of one tensor, on one rank, from a step on."""
    changed = {name: flipped(VALUES[name], row)}
    return lambda who, step: changed if who == rank and step >= first else {}


def compared(*folders: Path) -> ReplicasData:
    found = compare_replicas([str(folder) for folder in folders])
    assert found is not None
    return found


def test_nothing_was_watched(tmp_path: Path) -> None:
    assert compare_replicas([str(tmp_path), str(tmp_path / "missing")]) is None


def test_equal_replicas(tmp_path: Path) -> None:
    plant(tmp_path, range(10, 101, 10), lambda rank, step: {})
    found = compared(tmp_path)
    assert (found["status"], found["checks"], found["step"]) == ("equal", 10, 100)
    assert replica_lines(found) == ["replicas are equal: 10 checks up to step 100"]


def test_a_drift_is_named(tmp_path: Path) -> None:
    plant(tmp_path, range(10, 101, 10), at(2, 53))
    found = compared(tmp_path)
    assert replica_lines(found) == [
        "replicas differ since step 51 to 60: layers.3.mlp.weight, rows 40-43, "
        "rank 2 against the 3 others"
    ]
    [one] = found["differences"]
    assert (one["equal"], one["first"], one["last"], one["ranks"]) == (50, 60, 100, [2])
    assert one["members"] == [0, 1, 2, 3]


def test_two_ranks_name_no_culprit(tmp_path: Path) -> None:
    plant(tmp_path, range(1, 5), at(1, 3, row=0), world=2)
    assert replica_lines(compared(tmp_path)) == [
        "replicas differ since step 3: layers.3.mlp.weight, rows 0-3, rank 0 against rank 1"
    ]


def test_two_ranks_of_four_against_each_other(tmp_path: Path) -> None:
    changed = {NAMES[0]: flipped(VALUES[NAMES[0]], 8)}
    plant(tmp_path, range(3), lambda rank, step: changed if rank >= 2 else {})
    [one] = compared(tmp_path)["differences"]
    assert one["text"] == (
        "replicas differ since step 0, the first check of these tensors: embed.weight, rows 8-11, "
        "ranks 0-1 against ranks 2-3"
    )
    assert one["ranks"] == [0, 1, 2, 3]


def test_several_tensors_and_places(tmp_path: Path) -> None:
    everything = {name: flipped(flipped(VALUES[name], 1), 60) for name in NAMES}
    plant(tmp_path, range(3), lambda rank, step: everything if rank == 1 and step else {})
    [one] = compared(tmp_path)["differences"]
    assert one["text"].endswith(": embed.weight, rank 1 against the 3 others; and 2 tensors more")
    assert [tensor["name"] for tensor in one["tensors"]] == list(NAMES)


def test_what_heals_and_comes_back_is_two_differences(tmp_path: Path) -> None:
    bad = {30, 40, 80}
    changed = {NAMES[2]: flipped(VALUES[NAMES[2]], 63)}
    plant(
        tmp_path, range(0, 100, 10),
        lambda rank, step: changed if rank == 3 and step in bad else {},
    )  # fmt: skip
    found = compared(tmp_path)["differences"]
    assert [(one["equal"], one["first"], one["last"]) for one in found] == [
        (20, 30, 40), (70, 80, 80),
    ]  # fmt: skip
    assert all("head.weight, rows 60-63, rank 3" in one["text"] for one in found)


def test_a_step_that_is_done_again_counts_as_it_was_last(tmp_path: Path) -> None:
    """After a rollback of all ranks, with a check that one of them has left out."""
    done = [(10, False), (20, True), (30, True), (20, False), (30, False)]
    changed = {NAMES[1]: flipped(VALUES[NAMES[1]], 41)}

    def plant_done(folder: Path, left_out: int | None, again: list[tuple[int, bool]]) -> None:
        for number in range(3):
            rank = PlantedRank(folder, number, [parameters("0-2", *NAMES)], world_size=3)
            for at, (step, is_bad) in enumerate([*done, *again]):
                if (number, at) != (0, left_out):
                    rank.check(step, {**VALUES, **(changed if is_bad and number == 1 else {})})
            rank.close()

    for left_out in (None, 0, 1, 3, 4):
        plant_done(tmp_path / f"equal{left_out}", left_out, [])
        found = compared(tmp_path / f"equal{left_out}")
        assert (found["status"], found["step"]) == ("equal", 30), (left_out, found)
        plant_done(tmp_path / f"differ{left_out}", left_out, [(40, True), (30, False), (40, True)])
        lines = replica_lines(compared(tmp_path / f"differ{left_out}"))
        assert lines == [
            "replicas differ since step 31 to 40: layers.3.mlp.weight, rows 40-43, "
            "rank 1 against the 2 others"
        ], left_out


# --- what is kept ---


def test_a_beginning_is_known_after_many_checks(tmp_path: Path) -> None:
    plant(tmp_path, range(300), at(2, 50))
    [one] = compared(tmp_path)["differences"]
    assert (one["first"], one["seen"], one["last"]) == (50, 50, 299)
    assert "layers.3.mlp.weight, rows 40-43, rank 2 against the 3 others" in one["text"]


def test_two_odd_neighbours_are_known_after_many_checks(tmp_path: Path) -> None:
    """Ranks 1 and 2 agree with each other: their values are kept by rank 2, those of the others by
    rank 0."""
    changed = {NAMES[0]: flipped(VALUES[NAMES[0]], 5)}
    plant(tmp_path, range(200), lambda rank, step: changed if rank in (1, 2) and step > 9 else {},
          world=5)  # fmt: skip
    [one] = compared(tmp_path)["differences"]
    assert "since step 10: embed.weight, rows 4-7, ranks 1-2 against the 3 others" in one["text"]


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    plant(tmp_path, range(300), at(2, 50), keeps=False)
    [one] = compared(tmp_path)["differences"]
    assert one["text"] == (
        "replicas differ since step 50: layers.3.mlp.weight, rows 40-43, "
        "rank 2 against the 3 others (as of step 236)"
    )
    plant(tmp_path, range(300), lambda r, s: at(2, 50)(r, s) if s < 99 else {}, keeps=False)
    [one] = compared(tmp_path)["differences"]
    assert one["text"].endswith(
        "step 50: parameters, rank 2 against the 3 others (which tensors is not kept any more)"
    )


def test_a_check_takes_24_bytes_for_ever(tmp_path: Path) -> None:
    rank = PlantedRank(tmp_path, 0, [parameters("0-1", NAMES[0])], world_size=2)
    sizes = []
    for step in range(200):
        rank.check(step, VALUES)
        sizes.append(Path(f"{rank.stem}.sums").stat().st_size)
    assert {after - before for before, after in itertools.pairwise(sizes)} == {24}


# --- who is compared ---


def test_shards_are_compared_along_replicas(tmp_path: Path) -> None:
    """HSDP of two shards: rank 3 has the second half, as rank 1 has."""
    half = (ROWS // 2, COLUMNS)
    values = {"w": VALUES[NAMES[0]][: 2 * ROWS * COLUMNS]}
    for number in range(4):
        ranks, begin = ("0,2", 0) if number % 2 == 0 else ("1,3", ROWS // 2)
        shard = TrackedData("w", "float32", SHAPE, (begin, 0), half)
        rank = PlantedRank(tmp_path, number, [ClassData("parameters", ranks, [shard])])
        for step in range(4):
            drifted = number == 3 and step >= 2
            rank.check(step, {"w": flipped(values["w"], 9)} if drifted else values)
        rank.close()
    assert replica_lines(compared(tmp_path)) == [
        "replicas differ since step 2: w, rows 40-43, rank 1 against rank 3"
    ]


def test_hosts_without_a_common_folder_claim_nothing(tmp_path: Path) -> None:
    classes = [parameters("0-1", *NAMES)]
    for rank in range(2):
        drifted = at(1, 0)(rank, 0)
        PlantedRank(tmp_path / str(rank), rank, classes).check(7, {**VALUES, **drifted})
    for rank in range(2):
        found = compared(tmp_path / str(rank))
        assert found["status"] == "not compared"
        assert found["notes"] == [
            f"parameters not compared with rank {1 - rank}: no file of theirs"
        ]
        assert replica_lines(found)[0].startswith("replicas were not compared: parameters not")
    both = compared(tmp_path / "0", tmp_path / "1")
    assert both["status"] == "differ"
    assert both["differences"][0]["tensors"][0]["place"] == "rows 40-43"


def test_other_lists_of_tensors_are_not_compared(tmp_path: Path) -> None:
    for rank in range(2):
        classes = [parameters("0-1", *NAMES[: 1 + rank])]
        PlantedRank(tmp_path, rank, classes).check(7, VALUES)
    found = compared(tmp_path)
    assert found["status"] == "not compared"
    assert "parameters of rank 0: other ranks have other ones" in found["notes"]


def test_attempts_and_generations_are_apart(tmp_path: Path) -> None:
    """Rank 1 drifts in the second attempt, after its tensors have changed."""
    for attempt, generation, names in ((1, 0, NAMES[:1]), (2, 0, NAMES[:1]), (2, 1, NAMES)):
        for number in range(2):
            rank = PlantedRank(
                tmp_path, number, [parameters("0-1", *names)], attempt=attempt,
                generation=generation,
            )  # fmt: skip
            for step in range(3):
                drifted = at(1, 1)(number, step) if generation else {}
                rank.check(step, {**VALUES, **drifted})
            rank.close()
    found = compared(tmp_path)["differences"]
    assert [(one["attempt"], one["first"]) for one in found] == [(2, 1)]
    assert "since step 1 of attempt 2: layers.3.mlp.weight, rows 40-43" in found[0]["text"]


def test_ranks_of_a_launch_are_compared_whatever_their_attempts(tmp_path: Path) -> None:
    """Rank 2 comes in the second launch, which is the second attempt of the others alone, and whose
    neighbours find each other's files."""
    for launch, attempts in ((111111111, [1, 1]), (222222222, [2, 2, 1])):
        ranks = [
            PlantedRank(tmp_path, number, [parameters(f"0-{len(attempts) - 1}", *NAMES)],
                        attempt=attempt, launch=launch)
            for number, attempt in enumerate(attempts)
        ]  # fmt: skip
        for step in range(200):
            for number, rank in enumerate(ranks):
                rank.check(step, {**VALUES, **at(2, 50)(number, step)})
        for rank in ranks:
            rank.close()
    found = compared(tmp_path)
    assert replica_lines(found) == [
        "replicas differ since step 50 of attempt 2: layers.3.mlp.weight, rows 40-43, "
        "rank 2 against the 2 others"
    ]
    assert found["notes"] == []


def test_a_launch_is_not_compared_with_an_older_one(tmp_path: Path) -> None:
    """Of rank 1 there is a file of the first launch alone, of other values."""
    for number, launch in ((0, 111111111), (1, 111111111), (0, 222222222)):
        rank = PlantedRank(tmp_path, number, [parameters("0-1", *NAMES)], attempt=1, launch=launch)
        for step in range(3):
            rank.check(step, {**VALUES, **(at(0, 0)(number, step) if launch > 2e8 else {})})
        rank.close()
    assert replica_lines(compared(tmp_path)) == [
        "replicas are equal: 3 checks up to step 2; parameters not compared with rank 1: no file "
        "of theirs"
    ]


def test_a_difference_before_other_tensors_came(tmp_path: Path) -> None:
    """The same class is in both files of a rank, of which the later one is longer."""
    other = ClassData("optimizer state", "0-1", parameters("0-1", NAMES[0]).tensors)
    for generation, steps in ((0, range(3)), (1, range(3, 40))):
        classes = [parameters("0-1", NAMES[1]), *[other] * generation]
        for number in range(2):
            rank = PlantedRank(tmp_path, number, classes, generation=generation)
            for step in steps:
                rank.check(step, {**VALUES, **(at(1, 1)(number, step) if step < 2 else {})})
            rank.close()
    found = compared(tmp_path)
    assert found["checks"] == 40
    assert [(one["equal"], one["first"], one["last"]) for one in found["differences"]] == [
        (0, 1, 1)
    ]  # fmt: skip


SAME = "replicas are equal: 9 checks up to step 8"


@pytest.mark.parametrize(
    ("changes", "line", "is_noted"),
    [
        (lambda rank, step: 0, SAME, False),
        (lambda rank, step: step, SAME, False),
        (lambda rank, step: rank + step, SAME, True),
        (lambda rank, step: rank + step // 4, SAME, True),  # all change it at the last check
        (lambda rank, step: (rank, step) == (1, 3), SAME, True),  # as where DDP overwrites it
        (lambda rank, step: rank * (step > 6), SAME, True),  # for two checks
        (
            lambda rank, step: rank * (step > 3),
            "replicas differ since step 4: table, rows 8-11, rank 0 against rank 1",
            False,
        ),
    ],
)
def test_buffers_that_differ(
    changes: Callable[[int, int], int], line: str, is_noted: bool, tmp_path: Path
) -> None:
    """They count once nobody changes them any more; before, they may depend on the data."""
    table = ClassData("buffers", "0-1", parameters("0-1", "table").tensors)
    for number in range(2):
        rank = PlantedRank(tmp_path, number, [parameters("0-1", NAMES[0]), table], world_size=2)
        for step in range(9):
            values = {**VALUES, "table": VALUES[NAMES[1]]}
            for column in range(int(changes(number, step))):
                values["table"] = flipped(values["table"], 9, column)
            rank.check(step, values)
        rank.close()
    found = compared(tmp_path)
    assert replica_lines(found) == [line]
    note = "buffers differ between ranks, as those that depend on their data do: table"
    assert found["notes"] == [note] * is_noted


# --- files that nobody can trust ---


def files(folder: Path, rank: int) -> tuple[Path, Path]:
    stem = folder / REPLICAS_FOLDER / f"rank_{rank}.1"
    return stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.sums")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("format", "passport", "not a file of replicas"),
        ("hash", 1, "has version 1 and sums 1, not 1, 2"),
        ("classes", [], None),
        ("classes", [{"kind": "parameters", "ranks": "0-9999999", "tensors": []}], "at most"),
        ("classes", [{"kind": "parameters", "ranks": "x", "tensors": []}], "must be numbers"),
        ("rank", "0", "Expected `int`"),
    ],
)
def test_damaged_headers_are_left_out(
    key: str, value: object, reason: str | None, tmp_path: Path
) -> None:
    plant(tmp_path, range(4), at(2, 2))
    header, _ = files(tmp_path, 0)
    header.write_bytes(
        msgspec.json.encode({**msgspec.json.decode(header.read_bytes()), key: value})
    )
    found = compared(tmp_path)
    assert "rank 2 against the 2 others" in found["differences"][0]["text"]
    if reason is not None:
        assert any("rank_0.1.json" in note and reason in note for note in found["notes"])
    assert any("not compared with rank 0" in note for note in found["notes"])


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "float33"},
        {"shape": [2**40, 2**40]},
        {"size": [65, 256]},
        {"at": [-1, 0]},
        {"size": [64]},
    ],
)
def test_impossible_tensors_are_refused(tensor: dict[str, object], tmp_path: Path) -> None:
    plant(tmp_path, range(2), lambda rank, step: {}, world=2)
    header, _ = files(tmp_path, 0)
    data = msgspec.json.decode(header.read_bytes())
    data["classes"][0]["tensors"][0] |= tensor
    header.write_bytes(msgspec.json.encode(data))
    with pytest.raises(ValueError, match=r"embed\.weight|at \[|numbers for"):
        SumsReader(str(header))


def test_a_log_that_is_being_written_and_a_slot_that_is_torn(tmp_path: Path) -> None:
    plant(tmp_path, range(4), at(2, 2))
    _, sums = files(tmp_path, 1)
    with open(sums, "r+b") as file:
        file.seek(0, 2)
        file.write(b"half")
        file.seek(3 * (8 + 64 * len(NAMES)) + 100)  # within the slot of check 3
        file.write(struct.pack("<Q", 1))
    found = compared(tmp_path)
    assert (found["checks"], found["step"]) == (4, 3)
    [one] = found["differences"]
    assert "layers.3.mlp.weight, rows 40-43, rank 2 against the 3 others" in one["text"]
    reader = SumsReader(str(files(tmp_path, 1)[0]))
    assert [reader.sums(check) is not None for check in reader.checks()] == [
        True, True, True, False,
    ]  # fmt: skip


def test_files_that_vanish_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run's folder is removed while `my_utils live` looks at it."""
    plant(tmp_path, range(4), at(2, 2))
    read = SumsReader.log

    def read_and_remove(reader: SumsReader) -> Any:
        found = read(reader)
        if reader.data.rank != 2:
            files(tmp_path, reader.data.rank)[1].unlink()
        return found

    monkeypatch.setattr(SumsReader, "log", read_and_remove)
    assert replica_lines(compared(tmp_path)) == [
        "replicas differ since step 2: parameters (which tensors is not kept any more)"
    ]


def test_a_missing_or_foreign_file_of_sums(tmp_path: Path) -> None:
    plant(tmp_path, range(4), at(2, 2))
    files(tmp_path, 0)[1].unlink()
    files(tmp_path, 1)[1].write_bytes(b"")
    (tmp_path / REPLICAS_FOLDER / "rank_9.json").write_text("{}")
    found = compared(tmp_path)
    assert found["differences"][0]["text"].endswith("rank 2 against rank 3")
    assert any(note.startswith("rank_0.1.json: No such file") for note in found["notes"])
