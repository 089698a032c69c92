"""Traces of other tools for the tests of merging: makers of real ones, and an oracle that counts
the slices and arrows that go in and come out. It pairs the events of the input by itself.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from my_utils.csv2trace import csv_to_trace

from ..support.run_csv import HEADER
from .perfetto import TraceProcessor

RUN_S = 1_750_000_000
SLICES = """
select s.name, s.dur, s.ts, p.name as process, t.name as thread, pp.name as other
from slice s left join thread_track tt on s.track_id = tt.id left join thread t using (utid)
left join process p using (upid) left join process_track pt on s.track_id = pt.id
left join process pp on pt.upid = pp.upid
"""
OPEN = -1  # the length that Perfetto gives a slice without an end
Slice = tuple[str, str, "str | None", int]  # name, process, thread, length; ns


def run_csv(folder: Path, began_s: int = RUN_S) -> Path:
    path = folder / "profile_rank_0.csv"
    path.write_text(
        HEADER
        + f'{began_s}.0,,h,0,forward,START,,"node_id=1,tid=7"\n'
        + f'{began_s + 1}.0,,h,0,forward,END,1000.0,"node_id=1,tid=7"\n'
    )
    return path


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_float=Decimal)
    return data if isinstance(data, list) else data["traceEvents"]


def places_of(events: list[dict[str, Any]]) -> Callable[[dict[str, Any]], tuple[str, str]]:
    """What gives the names of an event's process and thread."""
    named = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in events
             if e["ph"] == "M"}  # fmt: skip
    processes = {pid: name for (kind, pid, _), name in named.items() if kind == "process_name"}

    def place(event: dict[str, Any]) -> tuple[str, str]:
        pid, tid = event["pid"], event["tid"]
        process = processes.get(pid, "")
        if str(pid) not in process.split():
            process = f"{process} {pid}".strip()
        return process, named.get(("thread_name", pid, tid)) or f"thread {tid}"

    return place


def slices_in(path: Path) -> Counter[Slice]:
    """What the file says, by its own words. Asynchronous slices have no thread, those without an
    end the length OPEN."""
    events = events_of(path)
    place = places_of(events)
    found: Counter[Slice] = Counter()
    stacks: dict[Any, list[tuple[Decimal, tuple[str, str, str | None]]]] = {}
    for event in sorted((e for e in events if e["ph"] in "XBEbe"), key=lambda e: e["ts"]):
        pid, tid, name, at = (event[key] for key in ("pid", "tid", "name", "ts"))
        process, thread = place(event)
        is_async = event["ph"] in "be"
        key = (pid, name, event.get("cat"), str(event.get("id", event.get("id2")))) if is_async \
            else (pid, tid, name)  # fmt: skip
        if event["ph"] == "X":
            found[name, process, thread, round(event.get("dur", 0) * 1000)] += 1
        elif event["ph"] in "Bb":
            where = (name, process, None if is_async else thread)
            stacks.setdefault(key, []).append((at, where))
        elif stacks.get(key):
            length = int((at - stacks[key].pop()[0]) * 1000)
            found[name, process, None if is_async else thread, length] += 1
    for begins in stacks.values():
        found.update((*where, OPEN) for _, where in begins)
    return found


def slices_out(trace: Path) -> Counter[Slice]:
    found: Counter[Slice] = Counter()
    with TraceProcessor(trace) as processor:
        for row in processor.query(SLICES):
            process = row["process"] or row["other"]
            if process.endswith("rank 0"):
                continue
            thread = row["thread"] and re.sub(r" \(\d+\)$", "", row["thread"])
            found[row["name"], process, thread, row["dur"]] += 1
        complaints = processor.complaints()
        assert complaints == {}, f"{trace}: {complaints}"
    return found


def lengths(slices: Counter[Slice]) -> dict[tuple[str, str, str | None], list[int]]:
    """By name, process and thread, in order."""
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for one in sorted(slices.elements(), key=lambda one: one[3]):
        found.setdefault(one[:3], []).append(one[3])
    return found


def lost(wanted: Counter[Slice], found: Counter[Slice]) -> list[Slice]:
    """Those that are not there; what is 2 ns longer or shorter was rounded."""
    missing: list[Slice] = []
    there = lengths(found)
    for key, some in lengths(wanted).items():
        left = deque(there.get(key, []))
        for length in some:
            while left and left[0] < length - 2:
                left.popleft()
            if left and left[0] <= length + 2:
                left.popleft()
            else:
                missing.append((*key, length))
    return missing


def merged(folder: Path, *traces: Path, suffix: str, began_s: int = RUN_S) -> Path:
    out = folder / f"out{suffix}"
    csv_to_trace(run_csv(folder, began_s), out, merge=traces)
    return out


TORCH = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
adam = torch.optim.Adam(model.parameters())
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True,
             profile_memory=True) as profiler:
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        adam.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
"""
VIZTRACER = """
import asyncio, sys, threading
from viztracer import VizTracer
def inner(n): return sum(i * i for i in range(n))
def work():
    for _ in range(20): inner(50)
async def waits():
    for _ in range(3): await asyncio.sleep(0)
async def main(): await asyncio.gather(*[waits() for _ in range(4)])
with VizTracer(output_file=sys.argv[1], verbose=0) as tracer:
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    asyncio.run(main())
"""
NODE = """
const fs = require('fs');
for (let i = 0; i < 20; i++) fs.readdirSync('/');
setTimeout(() => fs.readdir('/', () => {}), 1);
"""


RANKS = """
import os, sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(4):
        model(torch.randn(4, 8)).sum().backward()
        profiler.step()
profiler.export_chrome_trace(f"{sys.argv[1]}/rank{dist.get_rank()}.json")
dist.barrier()
dist.destroy_process_group()
"""
CHROME_CATEGORIES = "startup,navigation,loading,toplevel,toplevel.flow,blink.user_timing,cc"
PAGE = """<p id=p></p><script>
for (let i = 0; i < 50; i++) document.getElementById('p').textContent = i;
performance.mark('a'); performance.mark('b'); performance.measure('own', 'a', 'b');
</script>"""


def run_tool(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[-3000:]}"


def written_by(package: str, script: str, folder: Path) -> list[Path]:
    pytest.importorskip(package)
    out = folder / f"{package}.json"
    run_tool([sys.executable, "-c", script, str(out)])
    return [out]


def torch_trace(folder: Path) -> list[Path]:
    return written_by("torch", TORCH, folder)


def torch_ranks(folder: Path) -> list[Path]:
    """Two ranks, whose flows have the same ids, and four steps, each with flows of its own."""
    pytest.importorskip("torch")
    script = folder / "ranks.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    run_tool([*command, str(script), str(folder)])
    return [folder / "rank0.json", folder / "rank1.json"]


def viztracer_trace(folder: Path) -> list[Path]:
    return written_by("viztracer", VIZTRACER, folder)


def node_trace(folder: Path) -> list[Path]:
    """V8's own writer: begins and ends, and asynchronous events."""
    categories = "v8,node,node.async_hooks,node.fs.sync,node.fs.async"
    node = shutil.which("node")
    assert node is not None
    command = [node, "--trace-events-enabled", "--trace-event-categories", categories, "-e", NODE]
    run_tool(command, cwd=folder)
    return list(folder.glob("node_trace.*.log"))


def chrome_trace(folder: Path) -> list[Path]:
    """The browser with all its processes, from its start on."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    page, out = folder / "page.html", folder / "chrome.json"
    page.write_text(PAGE)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user"]
    tracing = [f"--trace-startup={CHROME_CATEGORIES}", "--trace-startup-duration=2",
               "--trace-startup-format=json", f"--trace-startup-file={out}"]  # fmt: skip
    look = ["--dump-dom", "--virtual-time-budget=3000", page.as_uri()]
    run_tool([browser, *options, *tracing, *look])
    return [out]


TOOLS = [torch_trace, torch_ranks, viztracer_trace, node_trace, chrome_trace]


def arrows_in(path: Path) -> Counter[tuple[str, str]]:
    """The threads that the file's flows join: an end takes the last start of its name and id."""
    events = events_of(path)
    place = places_of(events)
    found: Counter[tuple[str, str]] = Counter()
    starts: dict[Any, str] = {}
    for event in sorted((e for e in events if e["ph"] in "sf"), key=lambda e: e["ts"]):
        key = (event.get("cat"), event["name"], event["id"])
        if event["ph"] == "s":
            starts[key] = " ".join(place(event))
        elif key in starts:
            found[starts[key], " ".join(place(event))] += 1
    return found


def arrows_out(trace: Path) -> Counter[tuple[str, str]]:
    """The threads that arrows join."""
    places = (
        "select s.id, p.name || ' ' || t.name as place from slice s"
        " join thread_track x on s.track_id = x.id join thread t using (utid)"
        " join process p using (upid)"
    )
    with TraceProcessor(trace) as processor:
        place = {row["id"]: row["place"] for row in processor.query(places)}
        flows = processor.query("select slice_out, slice_in from flow")
        return Counter((place[row["slice_out"]], place[row["slice_in"]]) for row in flows)


def sum_of(count: Callable[[Path], Counter[Any]], traces: list[Path]) -> Counter[Any]:
    return sum((count(trace) for trace in traces), Counter())
