"""The file of a recording: what comes back, what is refused, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import random
import zipfile
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from hypothesis import given, settings, strategies as st

from my_utils.tensors.recordings.recording import (
    FORMAT,
    ModuleInfo,
    Recording,
    RecordingError,
    RootCall,
    TraceEvent,
    TraceTensorMeta,
    load_recording,
    save_recording,
)


def small_recording(extra: Any = None) -> Recording:
    weight = TraceTensorMeta("weight", (2, 3), "float32", "cpu", "ab" * 16, "md5", stride=(3, 1))
    seen = TraceTensorMeta("0", (3,), "bfloat16", "cuda:0", stats={"min": -1.0, "mean": math.nan})
    seen.sample = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    inner = TraceEvent(index=1, module="fc", type="Linear", root=0, parent=0, depth=1, end_index=0)
    inner.inputs, inner.params = [seen], {"weight": weight}
    inner.input_values = {"scale": 2.5, "mode": "mean", "flag": None}
    return Recording(
        name="small",
        rank=3,
        world_size=4,
        created_unix=1.5,
        settings={"hash": "md5"},
        modules=[ModuleInfo("", "Net"), ModuleInfo("fc", "Linear", ["tied"], {"weight": "fc.w"})],
        roots=[RootCall(0, "", weights={"fc.weight": weight})],
        events=[TraceEvent(0, "", "Net", end_index=1, root=0, inputs=[seen]), inner],
        param_grads=[TraceTensorMeta("fc.weight", (2, 3), "float32", "cpu", note="meta")],
        counts={"hook_error": 2},
        extra=extra,
    )


def as_plain(recording: Recording) -> str:
    """All of it as text: NaN equals NaN in it, and tensors are shown with their values."""
    return repr(dataclasses.asdict(recording))


def test_everything_comes_back(tmp_path: Path) -> None:
    recording = small_recording({"note": "single step"})
    path = save_recording(recording, tmp_path / "new" / "folder" / "a.pt")
    again = load_recording(path)
    assert as_plain(again) == as_plain(recording)
    assert again.events[1].params["weight"] is again.roots[0].weights["fc.weight"]
    sample = again.events[0].inputs[0].sample
    assert sample is not None and sample.dtype == torch.bfloat16


def test_the_file_is_plain_data_without_this_package(tmp_path: Path) -> None:
    path = save_recording(small_recording({"note": 1}), tmp_path / "a.pt")
    payload = torch.load(path, weights_only=True)
    assert payload["format"] == FORMAT and payload["rank"] == 3 and payload["extra"] == {"note": 1}
    assert payload["events"][1]["params"]["weight"]["hash"] == "ab" * 16
    assert payload["events"][1]["params"]["weight"] is payload["roots"][0]["weights"]["fc.weight"]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(min_size=1)
    | st.sampled_from([torch.float32, torch.device("cpu")]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(extra=plain)
def test_plain_extra_is_kept_as_it_is(tmp_path_factory: pytest.TempPathFactory, extra: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.pt"
    save_recording(Recording(extra=extra), path)
    again = load_recording(path).extra
    assert again == extra and type(again) is type(extra)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Config:
    width: int
    path: Path


Pair = namedtuple("Pair", "left right")


def test_extra_that_weights_only_refuses_is_made_plain(tmp_path: Path) -> None:
    extra = {
        "config": Config(3, Path("x/y")),
        "pair": Pair(1, Color.RED),
        "numpy": (np.float32(0.5), np.int64(7), np.arange(3)),
        "counts": defaultdict(int, {"a": 1}),
        "ordered": OrderedDict(b=frozenset({1})),
        "shape": torch.zeros(2, 3).shape,
        "nothing": b"",
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    again = load_recording(save_recording(Recording(extra=extra), tmp_path / "a.pt")).extra
    assert again["config"] == {"width": 3, "path": "x/y"}
    assert again["pair"] == {"left": 1, "right": "red"}
    assert again["numpy"][:2] == (0.5, 7) and again["numpy"][2].tolist() == [0, 1, 2]
    assert again["counts"] == {"a": 1} and type(again["counts"]) is dict
    assert again["ordered"] == {"b": {1}} and tuple(again["shape"]) == (2, 3)
    assert torch.equal(again["parameter"], torch.ones(2)) and again["nothing"] == b""


def test_a_view_in_extra_does_not_bring_its_whole_storage(tmp_path: Path) -> None:
    view = torch.zeros(1_000_000)[:10]
    path = save_recording(Recording(extra=view), tmp_path / "a.pt")
    assert path.stat().st_size < 20_000


@pytest.mark.parametrize("bad", [object(), lambda: 0, {"a": [1, range(3)]}, torch.nn.Linear(1, 1)])
def test_extra_that_cannot_be_kept_raises_at_once(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(TypeError, match="extra"):
        save_recording(Recording(extra=bad), tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


def test_extra_that_holds_itself_raises(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="holds itself"):
        save_recording(Recording(extra=loop), tmp_path / "a.pt")


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    raw = save_recording(small_recording(), tmp_path / "a.pt").read_bytes()
    bad = tmp_path / "cut.pt"
    for length in (0, 1, 100, len(raw) // 2, len(raw) - 1):
        bad.write_bytes(raw[:length])
        with pytest.raises(RecordingError, match=r"cut\.pt"):
            load_recording(bad)


def test_flipped_bits_are_refused_or_harmless(tmp_path: Path) -> None:
    """Some bits of a zip mean nothing, such as those of its padding and its times."""
    path = save_recording(small_recording(), tmp_path / "a.pt")
    raw, expected = path.read_bytes(), as_plain(load_recording(path))
    chance, refused = random.Random(1), 0
    for _ in range(300):
        flipped = bytearray(raw)
        flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            assert as_plain(load_recording(path)) == expected
        except RecordingError:
            refused += 1
    assert refused > 100


def with_pickle(path: Path, raw: Path, change: Any) -> Path:
    """A whole file whose payload was changed."""
    payload = torch.load(raw, weights_only=True)
    change(payload)
    torch.save(payload, path)
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.update(format="other"), "is not a recording"),
        (lambda p: p.update(version=3), "has version 3"),
        (lambda p: p.update(version=1), "of the tensor hash, version 1; record it anew"),
        (lambda p: p.update(version="1"), "not a number above 0"),
        (lambda p: p.update(rank="0"), "the file.rank must be int"),
        (lambda p: p.pop("events"), "has no 'events'"),
        (lambda p: p.update(events={}), "events must be a list"),
        (lambda p: p["events"][0].update(inputs=[3]), r"inputs\[0\] is not a dict"),
        (lambda p: p["events"][0]["inputs"][0].update(shape=(1, "2")), "shape must be tuple"),
        (lambda p: p["events"][0]["inputs"][0].update(stats={"min": "x"}), "stats must be"),
        (lambda p: p["events"][1].update(parent=5), "parent that is not there"),
        (lambda p: p["events"][1].update(root=1), "root that is not there"),
        (lambda p: p["events"].reverse(), "not in their order"),
        (lambda p: p["roots"][0].update(weights=[1]), "must be a dict with names"),
    ],
)
def test_a_payload_of_another_shape_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    raw = save_recording(small_recording(), tmp_path / "a.pt")
    events = torch.load(raw, weights_only=True)["events"]
    assert len(events) == 2
    with pytest.raises(RecordingError, match=reason):
        load_recording(with_pickle(tmp_path / "b.pt", raw, change))


def test_later_keys_are_left_alone(tmp_path: Path) -> None:
    raw = save_recording(small_recording(), tmp_path / "a.pt")
    changed = with_pickle(tmp_path / "b.pt", raw, lambda p: p["events"][0].update(later=1))
    assert as_plain(load_recording(changed)) == as_plain(load_recording(raw))


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("trapped",))


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": FORMAT, "version": 1, "extra": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(RecordingError, match=r"holds objects of \w+\.mkdir"):
        load_recording(tmp_path / "trap.pt")
    assert not (tmp_path / "trapped").exists()


def test_a_zip_that_unpacks_to_more_than_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    with pytest.raises(RecordingError, match="compressed"):
        load_recording(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_recording(tmp_path / "none.pt")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_recording(small_recording("old"), tmp_path / "a.pt")

    def full_disk(payload: Any, out: Any) -> None:
        out.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_recording(small_recording("new"), path)
    assert load_recording(path).extra == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]
