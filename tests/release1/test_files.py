"""Files of the first release are read and adopted, and new ones have all that those have."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import random
import re
import shutil
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from my_utils import live
from my_utils.csv2trace import ConversionWarning, csv_to_trace
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

from ..conftest import RunPython
from ..support.profile_rows import COLUMNS, Row, forget_rows, read
from .release1_files import FILES, durations, objects, tensors, unpack

pytest.importorskip("torch", reason="torch is not installed")

EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
CRASHES = sorted(EXPECTED["crashed"])
RING_RECORDED = 9000  # stages of the run whose ring was full


def in_order(path: Path) -> tuple[int, str]:
    part = re.search(r"\.part(\d+)\.csv$", path.name)
    return (int(part[1]), "") if part else (10**9, path.name)


def rows_of(folder: Path, rank: int = 0) -> list[Row]:
    """Of all parts of the rank's CSV, by the csv module."""
    files = sorted(folder.glob(f"profile_rank_{rank}*.csv"), key=in_order)
    return [row for file in files for row in read(file)]


def finished(rows: list[Row]) -> Counter[str]:
    return Counter(row.name for row in rows if row.kind == "END")


def left_open(rows: list[Row]) -> list[str]:
    ended = {row.node for row in rows if row.kind == "END"}
    return [row.name for row in rows if row.kind == "START" and row.node not in ended]


def expected_of(name: str, rows: list[Row]) -> Counter[str]:
    wanted = Counter(EXPECTED["crashed"][name]["finished"])
    if name == "dropped":
        (row,) = (row for row in rows if row.name == "my_utils.dropped")
        wanted["short"] = RING_RECORDED - int(row.metadata["count"])
    return wanted


def crashed(name: str, tmp_path: Path) -> Path:
    """A log directory as it was left. A journal that lay elsewhere lies beside it here."""
    folder = unpack(f"crashed/{name}", tmp_path / "logs")
    for pointer in folder.glob("*.journal-ref"):
        assert pointer.read_text().startswith("/data/journals/")
        elsewhere = tmp_path / "journals"
        elsewhere.mkdir()
        (journal,) = folder.glob("*.journal")
        pointer.write_text(f"{shutil.move(journal, elsewhere)}\n")
    return folder


def slices(trace: Path) -> list[dict[str, Any]]:
    events = json.loads(trace.read_text())["traceEvents"]
    return [
        event
        for event in events
        if event["ph"] in "XB" and not re.fullmatch(r"step \d+", event["name"])
    ]


# --- journals of dead processes ---


@pytest.mark.parametrize("name", CRASHES)
def test_a_restarted_job_adopts_the_journal(name: str, tmp_path: Path) -> None:
    folder = crashed(name, tmp_path)
    before = b"".join(path.read_bytes() for path in sorted(folder.glob("*.csv"), key=in_order))
    forget_rows()
    GlobalLogger().setup(folder, rank=0, world_size=2, console=False)
    GlobalLogger().close()
    after = b"".join(path.read_bytes() for path in sorted(folder.glob("*.csv"), key=in_order))
    assert after.startswith(before)
    rows = rows_of(folder)
    assert finished(rows) == expected_of(name, rows)
    assert left_open(rows) == EXPECTED["crashed"][name]["open"]
    assert [path.name for path in tmp_path.rglob("*.journal*")] == []
    starts = [row.metadata["attempt"] for row in rows if row.name == "my_utils.process"]
    assert starts[0] == "1" and starts[-1] == "2"


@pytest.mark.parametrize("name", CRASHES)
def test_a_trace_is_made_without_changing_a_file(name: str, tmp_path: Path) -> None:
    folder = crashed(name, tmp_path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    left = EXPECTED["crashed"][name]["open"]
    if left:
        with pytest.warns(ConversionWarning, match="open"):
            csv_to_trace(folder, tmp_path / "trace.json", recover=True)
    else:
        csv_to_trace(folder, tmp_path / "trace.json", recover=True)
    found = Counter(event["name"] for event in slices(tmp_path / "trace.json"))
    assert found == expected_of(name, rows_of(folder)) + Counter(left)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", CRASHES)
def test_live_shows_where_it_was(name: str, tmp_path: Path) -> None:
    """By its journal alone: on another boot the later beat decides between the files."""
    folder = crashed(name, tmp_path)
    for beat in folder.glob("*.heartbeat.json"):
        beat.unlink()
    data = live.snapshot(folder)
    (rank,) = data["ranks"]
    assert data["problems"] == []
    assert rank["state"] in ("dead", "silent")  # by whether this is the boot of the run
    assert rank["source"] == "journal"
    assert rank["stack"] == EXPECTED["crashed"][name]["open"]
    assert rank["host"] == "node-a"
    last = {stage["name"] for thread in rank["threads"] for stage in thread["last"]}
    assert last <= set(EXPECTED["crashed"][name]["finished"]) | {"short"}


def test_events_of_all_kinds_come_out_of_the_journal(tmp_path: Path) -> None:
    folder = crashed("events", tmp_path)
    forget_rows()
    GlobalLogger().setup(folder, rank=0, console=False)
    GlobalLogger().close()
    rows = {(row.name, row.kind): row for row in rows_of(folder)}
    assert rows["checkpoint", "INSTANT"].metadata["note"] == "a,b=c%"
    assert rows["loss", "COUNTER"].metadata["valid"] == "0.5"
    assert rows["download", "ASYNC_START"].metadata["id"] == "7"
    assert rows["my_utils.time_offset", "INSTANT"].metadata["offset_ns"] == "1500000000"


def test_a_heartbeat_alone(tmp_path: Path) -> None:
    for name in ("crashed/elsewhere", "finished"):
        unpack(name, tmp_path / name)
        for path in (tmp_path / name).glob("*.journal*"):
            path.unlink()
        for path in (tmp_path / name).glob("*.heartbeat.json"):
            beat = json.loads(path.read_text())["time"]  # a copy's time says when it was made
            os.utime(path, (beat, beat))
    (rank,) = live.snapshot(tmp_path / "crashed/elsewhere")["ranks"]
    assert (rank["source"], rank["state"], rank["step"]) == ("heartbeat", "silent", 4)
    assert rank["stack"] == ["iter", "forward"]
    both = live.snapshot(tmp_path / "finished")["ranks"]
    assert [(each["rank"], each["state"]) for each in both] == [(0, "closed"), (1, "closed")]


def test_new_heartbeats_and_pointers_have_what_the_old_ones_have(
    run_python: RunPython, tmp_path: Path
) -> None:
    program = """
import os, signal, sys, time
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
os.mkdir("journals")
GlobalLogger().setup("logs", rank=0, console=False, journal_dir="journals")
timer = MyTimer(tag="train")
with timer.time_stage("data"):
    pass
timer.start("iter")
timer.step()
until = time.monotonic() + 60
beat = "logs/rank_0.heartbeat.json"
while time.monotonic() < until and not (os.path.exists(beat) and "iter" in open(beat).read()):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python("-c", program)
    logs = tmp_path / "logs"
    new = json.loads((logs / "rank_0.heartbeat.json").read_text())
    old = json.loads((FILES / "crashed/elsewhere/rank_0.heartbeat.json").read_text())
    assert new["version"] == old["version"]
    assert shape_is_kept(old, new)
    (pointer,) = logs.glob("rank_0.*.journal-ref")
    assert re.fullmatch(r"rank_0\.\d+\.\d+\.journal-ref", pointer.name)
    path, _place = pointer.read_text().splitlines()  # the first release reads the first line alone
    assert Path(path).name == pointer.name.removesuffix("-ref")


def shape_is_kept(old: Any, new: Any) -> bool:
    """Each key of the old is in the new, with a value of the same kind."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            key in new and shape_is_kept(value, new[key]) for key, value in old.items()
        )
    if isinstance(old, list):
        return isinstance(new, list) and (not old or not new or shape_is_kept(old[0], new[0]))
    numbers = (int, float)
    return (
        old is None
        or new is None
        or type(old) is type(new)
        or (isinstance(old, numbers) and isinstance(new, numbers))
    )


# --- profile CSVs and traces ---


@pytest.mark.parametrize("rank", [0, 1])
def test_stages_of_a_finished_run(rank: int) -> None:
    timeline = pytest.importorskip("my_utils.timeline")
    rows = rows_of(FILES / "finished", rank)
    assert finished(rows) == EXPECTED["finished"][f"rank {rank}"]
    files = sorted((FILES / "finished").glob(f"profile_rank_{rank}*.csv"), key=in_order)
    assert len(files) > (rank == 0)
    spans = [span for file in files for span in timeline.read_spans(file)]
    ends = {row.node: row for row in rows if row.kind == "END"}
    assert {span.node for span in spans} == set(ends)
    for span in spans:
        assert span.duration_ns == ends[span.node].duration_ns
        assert (span.name, span.step) == (ends[span.node].name, ends[span.node].step)


def test_new_rows_have_the_columns_and_the_rows_of_the_old_ones(tmp_path: Path) -> None:
    forget_rows()
    logger = GlobalLogger()
    logger.setup(tmp_path, rank=1, world_size=2, console=False, extra_log_label="Trainer")
    timer = MyTimer(tag="train")
    with timer.time_stage("iter"), timer.time_stage("forward"):
        pass
    logger.counter("loss", {"train": 1.0})
    timer.step()
    logger.close()
    header = (FILES / "finished/profile_rank_1.csv").read_text().splitlines()[0].split(",")
    assert header == COLUMNS
    new = (tmp_path / "profile_rank_1.csv").read_text().splitlines()[0].split(",")
    assert new[: len(header)] == header
    keys = [
        {(row.name, row.kind): list(row.metadata) for row in rows_of(folder, 1)}
        for folder in (FILES / "finished", tmp_path)
    ]
    for place in [("iter", "START"), ("forward", "END"), ("my_utils.process", "INSTANT")]:
        assert set(keys[0][place]) <= set(keys[1][place])
    assert keys[1]["forward", "END"][:4] == keys[0]["forward", "END"][:4]


@pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning")
@pytest.mark.parametrize("layout", ["ranks", "seed"])
def test_traces_in_json_keep_each_event(layout: Any, tmp_path: Path) -> None:
    folder = unpack("finished", tmp_path / "finished")
    csv_to_trace(folder, tmp_path / "new.json", layout=layout)
    packed = unpack("traces", tmp_path / "traces")
    old = json.loads((packed / f"{layout}.json").read_text())["traceEvents"]
    new = json.loads((tmp_path / "new.json").read_text())["traceEvents"]
    place = {json.dumps(identity(event)): event for event in new}
    for event in old:
        found = place[json.dumps(identity(event))]
        assert event.keys() <= found.keys()
        assert event.get("args", {}).items() <= found.get("args", {}).items()
    assert arrows(new) == arrows(old)
    csv_to_trace(folder, tmp_path / "new.json.gz", layout=layout)
    assert (tmp_path / "new.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert (packed / "ranks.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def identity(event: dict[str, Any]) -> list[Any]:
    """Numbers of arrows may be others, as long as they join the same ends."""
    keys = ["ph", "name", "ts", "dur", "pid", "tid"] + ([] if event["ph"] in "sf" else ["id"])
    return [event.get(key) for key in keys] + [
        event["args"].get("name") if event["ph"] == "M" else None
    ]


def arrows(events: list[dict[str, Any]]) -> list[list[str]]:
    """The ends of each arrow."""
    ends: dict[Any, list[str]] = {}
    for event in events:
        if event["ph"] in "sf":
            ends.setdefault((event["name"], event["id"]), []).append(json.dumps(identity(event)))
    return sorted(sorted(each) for each in ends.values())


@pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning")
def test_perfetto_traces_have_as_many_packets_of_each_kind(tmp_path: Path) -> None:
    folder = unpack("finished", tmp_path / "finished")
    csv_to_trace(folder, tmp_path / "new.pftrace")
    old = kinds_of_packets((unpack("traces", tmp_path / "traces") / "ranks.pftrace").read_bytes())
    new = kinds_of_packets((tmp_path / "new.pftrace").read_bytes())
    assert old and old <= new


def kinds_of_packets(data: bytes) -> Counter[frozenset[int]]:
    """The fields that each packet has."""
    found: Counter[frozenset[int]] = Counter()
    for number, packet in fields(data):
        assert number == 1
        found[frozenset(field for field, _ in fields(packet))] += 1
    return found


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a protobuf message, one level deep."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 0:
            _, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
        found.append((key >> 3, data[at : at + size]))
        at += size
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def test_gpu_times(tmp_path: Path) -> None:
    ends = {row.name: row.metadata for row in rows_of(FILES / "on_gpu") if row.kind == "END"}
    for name, took_ms in EXPECTED["on_gpu"].items():
        assert float(ends[name]["cuda_ms"]) == pytest.approx(took_ms, rel=0.01)
    csv_to_trace(FILES / "on_gpu", tmp_path / "trace.json")
    gpu = [event for event in slices(tmp_path / "trace.json") if event["tid"] != event["pid"]]
    durations_ms = [event["dur"] / 1000 for event in gpu if event["dur"] > 1900]
    assert sorted(durations_ms) == pytest.approx(sorted(EXPECTED["on_gpu"].values()), rel=0.01)


# --- reports ---


def test_the_report_of_a_run(tmp_path: Path) -> None:
    for package in ("duckdb", "pandas", "scipy"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from my_utils.report import analyze

    logs = unpack("planted", tmp_path / "planted")
    old_files = unpack("report", tmp_path / "report")
    report = analyze(logs, parquet=tmp_path / "parquet")
    report.save_csv(tmp_path / "csv")
    old, new = json.loads((old_files / "report.json").read_text()), json.loads(report.to_json())
    assert shape_is_kept(old, new)
    assert [straggler["rank"] for straggler in new["stragglers"]] == [2]
    assert new["run"]["step_ms"] == pytest.approx(old["run"]["step_ms"])
    assert totals(new) == pytest.approx(totals(old))
    assert totals(new) == pytest.approx(totals_of_rows(logs))
    for path in (old_files / "csv").glob("*.csv"):
        new_columns = (tmp_path / "csv" / path.name).read_text().splitlines()[0].split(",")
        assert set(path.read_text().splitlines()[0].split(",")) <= set(new_columns), path.name
    assert columns_and_rows(old_files / "parquet") <= columns_and_rows(tmp_path / "parquet")


def totals(report: dict[str, Any]) -> dict[str, float]:
    return {stage["stage"].rpartition("/")[2]: stage["total_s"] for stage in report["stages"]}


def totals_of_rows(logs: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in range(4):
        for row in rows_of(logs, rank):
            if row.kind == "END":
                assert row.duration_ns is not None
                found[row.name] = found.get(row.name, 0) + row.duration_ns / 1e9
    return found


def columns_and_rows(folder: Path) -> set[object]:
    import duckdb

    files = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = true)"

    def answer(query: str) -> list[tuple[Any, ...]]:
        relation = duckdb.sql(f"{query} from {files}")
        assert relation is not None
        return relation.fetchall()

    return {row[:2] for row in answer("describe select *")} | {*answer("select count(*)")}


def test_stage_reports(tmp_path: Path) -> None:
    forget_rows()
    GlobalLogger().setup(tmp_path / "logs", rank=0, console=False)
    timer = MyTimer(tag="train")
    for step in range(3):
        timer.set_step(step)
        with timer.time_stage("iter"), timer.time_stage("forward"):
            pass
        timer.step()
    report = timer.generate_report("", tmp_path / "report.txt", "0:2")
    timer.generate_csv(report, tmp_path / "report.csv")
    GlobalLogger().close()
    old, new = (
        json.loads((folder / "report.json").read_text())
        for folder in (FILES / "stage_report", tmp_path)
    )
    assert shape_is_kept(old, new)
    with (FILES / "stage_report/report.csv").open() as file:
        columns = next(csv.reader(file))
    with (tmp_path / "report.csv").open() as file:
        assert next(csv.reader(file))[: len(columns)] == columns


# --- requests and answers ---


def test_requests_of_every_kind_and_their_answers(tmp_path: Path) -> None:
    from my_utils.capture import Request, answers, request_capture

    folder = unpack("control", tmp_path / "logs")
    control = folder / "my_utils.control.json"
    old = json.loads(control.read_text())
    requests = [Request.from_data(data) for data in old["requests"]]
    assert [request.as_data() for request in requests] == old["requests"]
    assert [request.backend for request in requests] == ["none", "torch", "cuda", "memory", "none"]
    assert requests[2].rank_numbers() == [3, 4, 5, 9] and requests[2].tag == "train"
    assert requests[3].at_start and requests[4].window is not None
    found = [answers(folder, request.id, [0]) for request in requests]
    states = [each[0]["state"] if each else None for each in found]
    assert states == ["done", "done", None, "armed", "failed"]

    added = request_capture(folder, ranks=[1], first_step=7, backend="none")
    new = json.loads(control.read_text())
    assert new["requests"][:-1] == old["requests"] and new["requests"][-1]["id"] == added.id
    assert {**new, "requests": []} == {**old, "requests": []}
    assert new["requests"][-1].keys() >= old["requests"][0].keys()


def test_a_new_answer_has_what_the_old_ones_have(run_python: RunPython, tmp_path: Path) -> None:
    from my_utils.capture import answers, request_capture

    folder = unpack("control", tmp_path / "logs")
    (status,) = (
        (folder / "captures").glob("*fb0d316a*")
        if False
        else sorted((folder / "captures").glob("*.json"))[:1]
    )
    request = request_capture(folder, ranks=0, backend="none", first_step="now", at_start=True)
    program = """
import time
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
timer = MyTimer()
for step in range(400):
    timer.set_step(step)
    timer.step()
    time.sleep(0.005)
"""
    assert run_python("-c", program).returncode == 0
    answer = answers(folder, request.id, [0])[0]
    assert answer["state"] == "done"
    assert shape_is_kept(json.loads(status.read_text()), answer)


# --- times ---


def test_gathered_times_from_a_file(tmp_path: Path) -> None:
    from my_utils.timing import ProfiledTime

    times = ProfiledTime.load(FILES / "timing/gathered.pt")
    assert (times.world_size, times.missing) == (1, {})
    assert set(times) == set(durations())
    for name, seconds in durations().items():
        assert times[name].count() == len(seconds)
        assert times[name].mean() == pytest.approx(statistics.fmean(seconds))
        assert times[name].std() == pytest.approx(statistics.stdev(seconds))
        assert (times[name].min(), times[name].max()) == (min(seconds), max(seconds))
    import torch

    saved = torch.load(times.save(tmp_path / "again"), weights_only=True)
    old = torch.load(FILES / "timing/gathered.pt", weights_only=True)
    assert shape_is_kept(old, saved)
    assert (saved["format"], saved["version"]) == (old["format"], old["version"])


RANK_0 = """
import json, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from my_utils.timing import TimeManager

store = dist.HashStore()
for key, value in json.load(open(sys.argv[1])).items():
    store.set(key, bytes.fromhex(value))
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
times = TimeManager({"load": [8.0]}).gather(tag=sys.argv[2], store=store, timeout=20)
load, save = times["load"], times["save"]
print(json.dumps([times.missing, load.count(), load.sum(), load.is_summary, save.sum(), save.max(),
                  load.ranks, save.ranks]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "summary"])
def test_a_message_of_an_old_rank_is_taken(kind: str, run_python: RunPython) -> None:
    done = run_python("-c", RANK_0, str(FILES / f"timing/message_{kind}.json"), kind)
    assert done.returncode == 0, done.stderr
    missing, count, total, is_summary, save, longest, ranks, save_ranks = json.loads(done.stdout)
    assert missing == {}
    assert (count, total) == (5, 8 + sum(durations()["load"]))
    assert is_summary == (kind == "summary")
    assert save == pytest.approx(math.fsum(durations()["save"]))
    assert (longest, ranks, save_ranks) == (0.1, [0, 1], [1])


# --- tensors ---


def same(a: Any, b: Any) -> bool:
    """Equal in type and content, bit for bit in tensors."""
    import numpy as np
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [x.detach().contiguous().view(-1).view(torch.uint8) for x in (a, b) if x.numel()]
        return a.dtype == b.dtype and a.shape == b.shape and (not raw or torch.equal(*raw))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.nn.Module):
        return repr(a) == repr(b)
    return bool(a == b)


@pytest.mark.parametrize("name", sorted(set(objects()) - {"shared"}))
def test_dumps(name: str) -> None:
    from my_utils.dump_utils import UniversalLoader

    places = json.loads((FILES / "dumps/expected.json").read_text())
    loader = UniversalLoader(FILES / "dumps")
    assert same(loader.load(places[name], allow_pickle=True), objects()[name])
    assert loader.manifest(places[name])["stage"] == name


def test_dumps_of_other_forms() -> None:
    from my_utils.dump_utils import UniversalLoader

    places = json.loads((FILES / "dumps/expected.json").read_text())
    loader = UniversalLoader(FILES / "dumps")
    assert same(loader.load(places["async"]), objects()["tensors"])
    shared = loader.load(places["shared"])
    assert shared["a"] == [1, 2] and shared["a"] is shared["b"]
    assert shared["cyclic"][1] is shared["cyclic"]
    assert loader.load(places["cut"]) == {"none": None, "bool": True}
    assert len(loader.dumps()) == len(places)


def test_new_dumps_have_the_files_and_keys_of_the_old_ones(tmp_path: Path) -> None:
    from my_utils.dump_utils import DumpConfig, UniversalDumper

    places = json.loads((FILES / "dumps/expected.json").read_text())
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True))
    for name in ("plain", "standard", "arrays"):
        old = FILES / "dumps" / places[name]
        new = Path(str(dumper.dump(stage=name, obj=objects()[name], data_id=42, branch="train")))
        assert {path.name for path in new.iterdir()} == {path.name for path in old.iterdir()}
        for file in ("manifest.json", "tree.json"):
            assert shape_is_kept(
                json.loads((old / file).read_text()), json.loads((new / file).read_text())
            )


def test_single_tensors(tmp_path: Path) -> None:
    from my_utils.dump_utils import DumpTensorIO

    folder = unpack("tensor_io", tmp_path / "io")
    keeper = DumpTensorIO(folder, compare_file=folder / "compare.jsonl")
    assert same(keeper.load(7, "latent", rank=0), tensors()["float32"])
    keeper.compare(tensors()["float32"], 7, "latent", rank=0)
    old, new = map(json.loads, (folder / "compare.jsonl").read_text().splitlines())
    assert (old["status"], new["status"]) == ("close", "same")
    assert old.keys() <= new.keys()


@pytest.mark.parametrize("name", sorted(json.loads((FILES / "tensors.json").read_text())))
def test_digests(name: str) -> None:
    import torch

    from my_utils.tensors import md5, nan_inf_count, tensor_hash

    old = json.loads((FILES / "tensors.json").read_text())[name]
    tensor = tensors()[name]
    digest = tensor_hash(tensor)
    assert (digest.content, digest.combined) == (old["content"], old["combined"])
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert md5(tensor) == old["md5"] == hashlib.md5(data).hexdigest()
    assert repr(nan_inf_count(tensor)) == old["nan_inf"]


def test_recordings(tmp_path: Path) -> None:
    from my_utils.diverge import compare_files, main
    from my_utils.module_hook import ForwardTraceRecorder

    folder = unpack("recordings", tmp_path / "recordings")
    recording = ForwardTraceRecorder.load(folder / "a.pt")
    assert [event.module for event in recording.events] == ["", "0", "1", "2", "3"]
    assert (recording.host, recording.extra) == ("host-a", {"note": "single step"})
    sample = recording.events[0].inputs[0].sample
    assert sample is not None and sample.tolist() == [0, 1, 2, 3]
    report = compare_files(folder / "a.pt", folder / "b.pt")
    assert report.status == "different" and report.first is not None
    assert report.first.difference is not None and report.first.difference.call is not None
    assert report.first.difference.call.name == "3"
    assert main([str(folder / "a.pt"), str(folder / "b.pt"), "--json"]) == 1


def test_what_diverge_prints_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from my_utils.diverge import main

    folder = unpack("recordings", tmp_path / "recordings")
    main([str(folder / "a.pt"), str(folder / "b.pt"), "--json"])
    assert shape_is_kept(
        json.loads((folder / "diverge.json").read_text()), json.loads(capsys.readouterr().out)
    )


def test_the_inputs_of_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from my_utils.compare_tool import nan_inf_track_for_single_op

    for suffix in ("pkl", "safetensors"):
        path = FILES / f"operators/torch.ops.aten.div_inputs.{suffix}"
        correct, args, kwargs, out = nan_inf_track_for_single_op(path, torch.ops.aten.div)
        assert not correct and kwargs == {}
        assert [arg.tolist() for arg in args] == [[1, 0], [1, 0]]
        assert out[0] == 1 and out[1].isnan()


# --- the rest ---


def test_random_states(tmp_path: Path) -> None:
    import numpy as np
    import torch

    from my_utils.CtrlRandom.control_random import ControlRandom

    drawn = json.loads((FILES / "random/drawn_next.json").read_text())
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    ControlRandom.setup(unpack("random", tmp_path), rank=0)
    data = ControlRandom.load_random("step 5")
    now = {"python": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1).item()}
    ControlRandom.setup()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    assert data["x"].tolist() == [0, 1, 2] and data["text"] == "a"
    assert now == drawn


def test_a_tracker_goes_on_with_the_file(tmp_path: Path) -> None:
    from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

    name = "run_rank0_performance_profile.csv"
    folder = unpack("tracker", tmp_path / "tracker")
    before = (folder / name).read_text()
    with GPU_Performance_Tracker(tmp_path / "new" / "run", 0.05, False, plot=False):
        pass
    header = (tmp_path / "new" / name).read_text().splitlines()[0].split(",")
    assert set(before.splitlines()[0].split(",")) <= set(header)
    with GPU_Performance_Tracker(folder / "run", 0.05, False, plot=False):
        pass
    kept = [path.read_text() for path in folder.iterdir()]
    assert any(text.startswith(before) for text in kept)


def test_a_sweep(tmp_path: Path) -> None:
    from my_utils.annotations import parametrize_shapes

    @parametrize_shapes(shapes=[1], warmup=0, repeats=1, output_csv=tmp_path / "sweep.csv")
    def work(shape: int) -> None:
        pass

    work()
    tables = []
    for path in (FILES / "sweep/sweep.csv", tmp_path / "sweep.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert tables[0][0].keys() <= tables[1][0].keys()
    assert [row["status"] for row in tables[0]] == ["ok"] * 4 + ["oom", "error"]
