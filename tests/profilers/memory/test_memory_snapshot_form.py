"""Allocations that the profiler saw, in the form of torch's memory viewer, read by its tools."""

from __future__ import annotations

import base64
import json
import os
import pickle
import pickletools
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch.cuda import _memory_viz as viewer

from my_utils.profilers.memory.memory_snapshot_form import make_snapshot, write_snapshot

CPU = -1  # the last device
# What unpickle() in torch/utils/viz/MemoryViz.js of torch 2.13 knows.
VIEWER_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT",
    "BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1",
    "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO",
    "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip

Snapshot = dict[str, Any]


def make_big() -> torch.Tensor:
    return torch.ones(1024, 1024)


def profiled(**options: Any) -> tuple[torch.profiler.profile, list[Any]]:
    """A step of a layer that was there before, and one tensor that stays."""
    layer = torch.nn.Linear(64, 32)
    with torch.profiler.profile(profile_memory=True, **options) as profile:
        layer(torch.ones(4, 64)).sum().backward()
        kept = make_big()
    return profile, [layer, kept]


@pytest.fixture(scope="module")
def taken() -> tuple[Snapshot, list[Any]]:
    profile, alive = profiled(record_shapes=True, with_stack=True)
    return make_snapshot(profile), alive


@pytest.fixture(scope="module")
def snapshot(taken: tuple[Snapshot, list[Any]]) -> Snapshot:
    return taken[0]


def live(snapshot: Snapshot) -> dict[int, dict[str, Any]]:
    return {
        block["address"]: block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_the_events_are_those_of_the_trace(tmp_path: Path) -> None:
    profile, _ = profiled()
    wrote = tmp_path / "trace.json"
    profile.export_chrome_trace(str(wrote))
    content = json.loads(wrote.read_text(encoding="utf-8"))
    told = [event["args"] for event in content["traceEvents"] if event["name"] == "[memory]"]
    expected = [(event["Addr"], event["Bytes"]) for event in told if event["Device Type"] == 0]
    events = make_snapshot(profile)["device_traces"][CPU]
    sizes = {"alloc": 1, "free_completed": -1}
    ours = [(event["addr"], sizes[event["action"]] * event["size"])
            for event in events if event["action"] in sizes]  # fmt: skip
    assert ours == expected
    assert len(ours) > 5


def test_times_and_pairs(snapshot: Snapshot) -> None:
    events = snapshot["device_traces"][CPU]
    times = [event["time_us"] for event in events]
    assert times == sorted(times)
    assert abs(times[-1] / 1e6 - time.time()) < 3600
    asked = [index for index, event in enumerate(events) if event["action"] == "free_requested"]
    assert asked
    for index in asked:
        assert events[index + 1]["action"] == "free_completed"
        assert events[index + 1]["addr"] == events[index]["addr"]


def test_frames_lead_to_the_line(snapshot: Snapshot) -> None:
    (big,) = (event for event in snapshot["device_traces"][CPU] if event["size"] == 4 * 1024**2)
    names = [frame["name"] for frame in big["frames"]]
    assert names[:3] == ["aten::empty", "aten::ones", "make_big"]
    line = big["frames"][2]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert line["filename"].endswith(Path(__file__).name)
    assert "torch.ones(1024, 1024)" in source[line["line"] - 1]
    assert "profiled" in names


def test_what_is_alive_at_the_end(taken: tuple[Snapshot, list[Any]]) -> None:
    snapshot, (layer, kept) = taken
    blocks = live(snapshot)
    there_before = [layer.weight, layer.bias]
    for tensor in [kept, layer.weight.grad, *there_before]:
        assert blocks[tensor.data_ptr()]["requested_size"] == tensor.nbytes
    assert [blocks[tensor.data_ptr()]["frames"] for tensor in there_before] == [[], []]


def test_segments_are_filled(snapshot: Snapshot) -> None:
    end = 0
    for segment in snapshot["segments"]:
        assert segment["device"] == len(snapshot["device_traces"]) - 1
        assert segment["address"] >= end
        end = segment["address"] + segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == end
    spans = [(segment["address"], segment["address"] + segment["total_size"])
             for segment in snapshot["segments"]]  # fmt: skip
    for event in snapshot["device_traces"][CPU]:
        assert any(begin <= event["addr"] and event["addr"] + event["size"] <= end
                   for begin, end in spans)  # fmt: skip


def test_torchs_own_tools_read_it(snapshot: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    write_snapshot(path, snapshot)
    content = pickle.loads(path.read_bytes())
    assert content == snapshot
    assert os.listdir(tmp_path) == [path.name]

    allocated = sum(block["requested_size"] for block in live(content).values())
    assert f"total_allocated: {viewer.Bytes(allocated)}\n" in viewer.segsum(content)
    assert "aten::ones" in viewer.memory(content, format_flamegraph=str)
    assert "4.0MiB" in viewer.trace(content)
    for plot in (viewer.trace_plot, viewer.segment_plot):
        (inside,) = re.findall(r'"base64": "([^"]+)"', plot(content))
        assert pickle.loads(base64.b64decode(inside)) == snapshot
    left = viewer.trace_plot(content, filter_freed=True)  # changes what it is given
    assert left
    assert {event["action"] for event in content["device_traces"][CPU]} == {"alloc"}
    assert sum(event["size"] for event in content["device_traces"][CPU]) > 4 * 1024**2


def test_the_viewer_in_the_browser_knows_the_opcodes(snapshot: Snapshot, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "snapshot.pickle", snapshot)
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        used = {opcode.name for opcode, _, _ in pickletools.genops(file)}
    assert used <= VIEWER_OPCODES


def test_operators_are_named_without_stacks() -> None:
    profile, _ = profiled()
    (big,) = (event for event in make_snapshot(profile)["device_traces"][CPU]
              if event["size"] == 4 * 1024**2)  # fmt: skip
    assert [frame["name"] for frame in big["frames"]] == ["aten::empty", "aten::ones"]


def test_memory_that_was_taken_again_is_shown_once() -> None:
    """The CPU's part of the profiler does not tell the release of what it did not see allocated."""
    old = torch.ones(1 << 16)
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        old.add_(1)
        address, size = old.data_ptr(), old.nbytes
        del old
        again = [torch.ones(1 << 12) for _ in range(32)]
    snapshot = make_snapshot(profile)
    blocks = live(snapshot)
    assert {tensor.data_ptr() for tensor in again} <= blocks.keys()
    if any(address <= tensor.data_ptr() < address + size for tensor in again):
        assert blocks.get(address, {"size": 0})["size"] < size
    viewer.segsum(snapshot)


def test_without_memory_events() -> None:
    with torch.profiler.profile() as profile:
        torch.ones(4)
    snapshot = make_snapshot(profile)
    assert (snapshot["segments"], snapshot["device_traces"][CPU]) == ([], [])
    viewer.segsum(snapshot)


def test_a_profiler_without_results() -> None:
    with pytest.raises(RuntimeError, match="no results"):
        make_snapshot(torch.profiler.profile())


def test_a_folder_that_is_not_there(tmp_path: Path, snapshot: Snapshot) -> None:
    with pytest.raises(FileNotFoundError):
        write_snapshot(tmp_path / "none" / "snapshot.pickle", snapshot)
