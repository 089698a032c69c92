"""Small traces that would take minutes or gigabytes: each ends with a reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.core.bounded_read import UNPACKED_FREE
from my_utils.trace.chrome_json import ChromeJson, TraceFileError

from ..support.torch_traces import slice_of
from ..support.variants import gate_runs

TOO_MUCH = "damaged: too much of it is not JSON"
BEGIN = b'{"traceEvents": ['
PACKED_BOMBS = {
    "spaces": BEGIN + b" " * 2 * UNPACKED_FREE + b"]}",
    "one text": BEGIN + b'{"ph": "X", "name": "' + b"a" * 2 * UNPACKED_FREE + b'"}]}',
    "events": BEGIN + b'{"ph": "M"},' * (UNPACKED_FREE // 6) + b"{}]}",
}
BOMBS = {
    "events in events": BEGIN + b'{"ph":X,{"ph":1},' * 100_000,
    "brackets": BEGIN + b"[" * 3_000_000,
    "brackets beside the events": b'{"x": ' + b"[" * 3_000_000,
    "empty texts": BEGIN + b'{"a":' + b'"",' * 2_000_000,
    "bad events": BEGIN + b'{"ph":X},' * 1_000_000,
}


def events_of(path: Path) -> str:
    """What is wrong with the file."""
    with pytest.raises(TraceFileError) as error:
        for _ in ChromeJson(path).events():
            pass
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", gate_runs(("events",), PACKED_BOMBS))
def test_a_packed_trace_is_not_much_larger_than_traces_are(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(PACKED_BOMBS[bomb]))
    assert path.stat().st_size < 200_000
    assert events_of(path) == f"{path}: unpacks to more than 50 times its size"
    assert "unpacks to more than 50 times its size" in str(verdict_of([str(path)]).reason)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", gate_runs(("brackets", "bad events"), BOMBS))
def test_what_is_no_json_is_searched_for_so_long(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(BOMBS[bomb])
    assert events_of(path) == f"{path}: {TOO_MUCH}"


def test_a_large_value_is_read_once_it_is_whole(tmp_path: Path) -> None:
    """An event, and a value beside the events, that need many reads, and each time are cut off."""
    names = [f"frame {at}" for at in range(200_000)]
    events = [{**slice_of("kernel", "gemm", 0, 9), "args": {"stack": names}}, {"ph": "i", "ts": 5}]
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"frames": names, "traceEvents": events}))
    source = ChromeJson(path)
    assert list(source.events()) == events
    assert source.metadata == {"frames": names} and not source.left_out
