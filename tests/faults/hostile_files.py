"""Files made to do harm, from the grammar of each format that Python reads.

    python -m tests.faults.hostile_files COUNT SEED FOLDER [READER ...]

Each reader gets COUNT inputs in children of its own. It may refuse a file with an error that it
promises. It may not crash, raise anything else, take more than SECONDS of the processor for one
input, or more than MEMORY. Input n has the seed SEED + n, so what was cut off goes on with a later
SEED. The readers in C have csrc/engine/tests/trace/test_hostile.c.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import mmap
import os
import pickle
import random
import resource
import struct
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support import flight_dumps
from ..support.run_csv import HEADER
from ..support.torch_traces import slice_of

SECONDS = 20
MEMORY = 3 << 30  # of addresses, on top of what the child has at its start

NUMBERS: list[Any] = [
    *[0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64, 10**30, 10**400, 1.5, -0.0],
    *[1e308, 1e999, -1e999, 5e-324, 9e9, 1.75e9],
]
BEYOND = ["a number beyond Decimal's range", "one that takes long to write out"]
STRANGE: list[Any] = [
    *BEYOND,
    *[*NUMBERS, None, True, "", "x" * 5000, "\ud800", "a\x1b[2Jb", "\x00", "1e999", "0", "../.."],
    *[[], {}, [[]], {"": {}}, [None] * 50, {"x": [1]}, "[0, 1]", "4294967296", "send 0->9"],
]


def deep(chance: random.Random, levels: int) -> Any:
    """Lists in dicts in lists, a way of ending a parser that calls itself."""
    value: Any = 0
    for _ in range(levels):
        value = [value] if chance.random() < 0.5 else {"x": value}
    return value


def changed(value: Any, chance: random.Random) -> Any:
    """The same structure with one place replaced, taken out, doubled or nested."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, (list, tuple)) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        new = [*value[:at], changed(value[at], chance), *value[at + 1 :]]
        return type(value)(new * (1 + 30 * (chance.random() < 0.1)))
    return chance.choice([*STRANGE, deep(chance, chance.choice([3, 50, 400]))])


def often_changed(value: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        value = changed(value, chance)
    return value


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bits flipped, pieces taken out or doubled, the end cut off; half of the time nothing."""
    out = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 3])):
        if not out:
            break
        at, length = chance.randrange(len(out)), chance.choice([1, 2, 8, 60])
        action = chance.randrange(4)
        if action == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            del out[at : at + length]
        elif action == 2:
            out[at:at] = out[at : at + length] * chance.choice([1, 20])
        else:
            del out[at:]
    return bytes(out)


def as_json(value: Any) -> bytes:
    """With numbers that are no floats spelled out."""
    text = json.dumps(value).replace("Infinity", "1e999")
    for words, number in zip(BEYOND, ("1e9999999999999999999", "1e9999999"), strict=True):
        text = text.replace(f'"{words}"', number)
    return text.encode("utf-8", "surrogatepass")


def maybe_packed(data: bytes, chance: random.Random) -> bytes:
    """Damaged before or after it is packed, if it is."""
    packed = gzip.compress(data if chance.random() < 0.5 else damaged(data, chance))
    return damaged(packed if chance.random() < 0.5 else data, chance)


# --- formats ---

HEARTBEAT = {
    "version": 1, "rank": 0, "world_size": 2, "pid": 7, "attempt": 1, "host": "h",
    "label": "rank_0", "time": 1.75e9, "began": 1.75e9, "time_offset": 0.0, "closed": False,
    "dropped": 0,
    "lanes": [{"tid": 7, "thread": "", "tag": "", "step": 3, "ended": 1.75e9,
               "open": [{"name": "forward", "step": 3, "since": 1.75e9}]}],
}  # fmt: skip


def heartbeat(folder: Path, chance: random.Random) -> None:
    from my_utils.analysis import live

    for rank in range(2):
        data = as_json(often_changed({**HEARTBEAT, "rank": rank}, chance))
        (folder / f"rank_{rank}.heartbeat.json").write_bytes(damaged(data, chance))
    json.dumps(live.snapshot(folder, hung_after_s=5))


OPERATIONS = (
    b"(.0123456789:;=>?@ABCDGIJKLMNOPQRSTUVXY\\]^_abcdefghijklnopqrstu}\x80\x81\x82\x83\x85"
)
OPERATIONS += b"\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98"


def harmful_pickle(chance: random.Random) -> bytes:
    kind = chance.randrange(6)
    if kind == 0:  # nested tuples as a key
        return b"\x80\x02})" + b"\x85" * chance.choice([100, 5000, 2_000_000]) + b"Ns."
    if kind == 1:  # one that holds itself twice, again and again
        return b"\x80\x02})" + b"q\x00h\x00\x86" * chance.choice([3, 20, 60]) + b"Ns."
    if kind == 2:  # sizes beyond the file
        operation = chance.choice([b"\x8e", b"\x8d", b"B", b"X", b"\x8b", b"\x95", b"\x96"])
        return b"\x80\x02" + operation + struct.pack("<Q", chance.choice([2**31, 2**31 - 1, 2**63]))
    if kind == 3:
        return b"\x80\x04" + bytes(chance.choice(OPERATIONS) for _ in range(chance.randrange(80)))
    if kind == 4:
        return b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    return b"\x80\x02r" + struct.pack("<I", 2**32 - 1) + b"."


def flight_dump(folder: Path, chance: random.Random) -> None:
    from my_utils.analysis.live import snapshot

    for rank in range(2):
        entries = flight_dumps.calls("all_reduce", "broadcast", "all_reduce", last="started")
        content = often_changed(
            {
                "version": "2.10",
                "entries": entries,
                "pg_config": {"0": {"ranks": "[0, 1]"}},
                "pg_status": {"0": {"last_enqueued_collective": 3}},
            },
            chance,
        )
        if chance.random() < 0.4:
            data = as_json(content)
        elif chance.random() < 0.7:
            data = pickle.dumps(content, protocol=chance.choice([2, 4]))
        else:
            data = harmful_pickle(chance)
        (folder / f"dump_{rank}").write_bytes(damaged(data, chance))
    json.dumps(snapshot(folder, flight_recorder=f"{folder}/dump_"))


def control(folder: Path, chance: random.Random) -> None:
    from my_utils.profilers.capture.on_demand.control_file import RequestError, read_requests

    request = {"id": "a", "ranks": "0-3,7", "first_step": 3, "steps": 2, "backend": "none"}
    content = {"my_utils": "control", "version": 1, "requests": [request, {"id": "b"}]}
    try:
        for found in read_requests(damaged(as_json(often_changed(content, chance)), chance)):
            if not isinstance(found, RequestError):
                found.is_for(3)
    except RequestError:
        pass


NCU = (
    '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","7","k(int)","GPU Speed Of Light","Duration","usecond","1,234.5"\n'
    '"0","7","k(int)","GPU Speed Of Light","Compute (SM) Throughput","%","50.1"\n'
    '"1","7","k(int)","GPU Speed Of Light","Duration","msecond","2"\n'
)


def ncu(folder: Path, chance: random.Random) -> None:
    from my_utils.profilers.ncu.ncu_csv import NcuCsvError, read_page

    rows = NCU.splitlines(keepends=True) * chance.choice([1, 1, 50])
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(rows))
        cells = rows[at].split(",")
        strange = str(chance.choice(STRANGE)).encode("utf-8", "replace").decode()
        cells[chance.randrange(len(cells))] = f'"{strange}"'
        rows[at] = ",".join(cells)
    path = folder / "ncu.csv"
    path.write_bytes(damaged("".join(rows).encode(), chance))
    with contextlib.suppress(NcuCsvError):
        read_page(path)


def a_profile(chance: random.Random) -> str:
    """Tracks that cross, ids that are used again, huge numbers, rows that are cut."""
    rows = []
    for _ in range(chance.randrange(1, 60)):

        def number(usual: int) -> str:
            return str(chance.choice(NUMBERS) if chance.random() < 0.1 else chance.randrange(usual))

        kind = chance.choice(["START", "START", "END", "END", "INSTANT", "COUNTER", "ASYNC_START"])
        pairs = f"node_id={number(9)},parent_id={number(9)},tid={number(4)}"
        if chance.random() < 0.3:
            pairs += f",cuda_ts={number(2 * 10**9)},cuda_ms={number(9)},stream={number(3)}"
        rows.append(
            f"1750000000.{chance.randrange(10**9):09},,h,{number(4)},s{chance.randrange(4)},{kind},"
            f'{number(9)},"{pairs}"\n'
        )
    return HEADER + "".join(rows)


def profile(folder: Path, chance: random.Random) -> None:
    """All that reads profile CSVs: a trace of each form, and the verdict."""
    from my_utils.analysis.verdict.load import NothingToJudge, load_run
    from my_utils.csv2trace import ConversionError, csv_to_trace

    path = folder / "profile_rank_0.csv"
    path.write_bytes(damaged(a_profile(chance).encode(), chance))
    with contextlib.suppress(ConversionError):
        csv_to_trace(path, folder / f"trace.{chance.choice(['json', 'pftrace'])}")
    with contextlib.suppress(NothingToJudge):
        load_run(folder)


EVENT = {"ph": "X", "ts": 1.0, "dur": 2.5, "pid": 1, "tid": 2, "name": "op", "args": {"a": 1}}


def merged_trace(folder: Path, chance: random.Random) -> None:
    from my_utils.csv2trace import ConversionError, csv_to_trace

    path, other = folder / "profile_rank_0.csv", folder / "other.trace"
    path.write_text(HEADER + '1750000000.000000001,,h,1,s,INSTANT,,"tid=1"\n')
    phases = ["X", "B", "E", "i", "C", "M", "s", "f", "b", "e", "P", "?"]
    events = [{**EVENT, "ph": chance.choice(phases), "id": number} for number in range(6)]
    content = {"traceEvents": events, "baseTimeNanoseconds": 1_750_000_000_000_000_000}
    other.write_bytes(maybe_packed(as_json(often_changed(content, chance)), chance))
    with contextlib.suppress(ConversionError):
        csv_to_trace(path, folder / "trace.json", merge=[other])


def judged_traces(folder: Path, chance: random.Random) -> None:
    """Two ranks, of which one has a slow kernel. Each file has a verdict, or the reason why not."""
    from my_utils.analysis.replay.inputs import verdict_of

    for rank in range(2):
        events: list[Any] = []
        for step in range(4):
            begin = 100 * step
            events.append(slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 100))
            for stream, name, took in ((7, "gemm", 40 + 30 * rank), (20, "ncclAllReduce", 20)):
                call = {"correlation": len(events), "stream": stream}
                launch, kernel = begin + stream, begin + 10 + stream
                events.append(
                    slice_of("cuda_runtime", "cudaLaunchKernel", launch, launch + 2, **call)
                )
                more = {"Process Group Ranks": "[0, 1]", "Collective name": "allreduce"}
                events.append(slice_of("kernel", name, kernel, kernel + took, **call, **more))
            events.append(slice_of("cpu_op", "enumerate(DataLoader)", begin, begin + 5))
        content = {"distributedInfo": {"rank": rank}, "host_name": "h", "traceEvents": events}
        text = as_json(often_changed(content, chance))
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(maybe_packed(text, chance))
    verdict = verdict_of([str(folder / f"rank{rank}.pt.trace.json.gz") for rank in range(2)])
    assert verdict.status != "not judged" or verdict.reason
    verdict.lines()
    json.dumps(verdict.as_data())


def judged_table(folder: Path, chance: random.Random) -> None:
    from my_utils.analysis.replay.inputs import verdict_of

    rows = [["rank", "step", "name", "begin_us", "end_us", "group", "lane"]]
    for number in range(chance.randrange(12, 60)):
        begin, group = 100 * (number // 4), chance.choice(["all", "tp", ""])
        row = [number % 2, number // 4, f"op{number % 3}", begin, begin + number % 90, group, 1]
        rows.append([str(chance.choice(STRANGE) if chance.random() < 0.002 else x) for x in row])
    path = folder / "operations.csv"
    text = "".join(",".join(row) + "\n" for row in rows)
    path.write_bytes(damaged(text.encode("utf-8", "surrogatepass"), chance))
    verdict = verdict_of([str(path)])
    assert verdict.status != "not judged" or verdict.reason
    json.dumps(verdict.as_data())


def recording(folder: Path, chance: random.Random) -> None:
    """The pickle in the file, its checksums made to agree."""
    from my_utils.tensors.recordings.recording import RecordingError, load_recording

    whole, path = folder.parent / "whole.pt", folder / "x.pt"
    if not whole.exists():
        from my_utils.tensors.recordings.recording import Recording, RootCall, save_recording

        save_recording(Recording(name="x", roots=[RootCall(0, "")], extra={"a": [1, (2,)]}), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as out:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = damaged(data if chance.random() < 0.7 else harmful_pickle(chance), chance)
            out.writestr(entry, data)
    with contextlib.suppress(RecordingError):
        load_recording(path)


READERS: dict[str, Callable[[Path, random.Random], None]] = {
    reader.__name__: reader
    for reader in (
        *(heartbeat, flight_dump, control, ncu, profile, merged_trace, judged_traces, judged_table),
        recording,
    )
}


# --- children ---


@dataclass
class Result:
    reader: str
    tried: int
    failure: str  # "" for none; else the seed and what happened
    longest_s: float
    memory: int  # bytes, of the child


class _Shared:
    """What a child says as it goes, to be read after it crashed: how far it is, and the longest."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 24)

    def say(self, done: int, longest_s: float) -> None:
        struct.pack_into("<qdq", self._map, 0, done, longest_s, _memory())

    def heard(self) -> tuple[int, float, int]:
        done, longest_s, memory = struct.unpack_from("<qdq", self._map, 0)
        return done, longest_s, memory


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def _child(read: Callable[..., None], count: int, seed: int, folder: Path, shared: _Shared) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    longest_s = 0.0
    for number in range(count):
        shared.say(number, longest_s)
        for path in folder.iterdir():
            path.unlink()
        used = resource.getrusage(resource.RUSAGE_SELF)
        began = used.ru_utime + used.ru_stime
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + 1 + SECONDS, resource.RLIM_INFINITY))
        read(folder, random.Random(seed + number))
        used = resource.getrusage(resource.RUSAGE_SELF)
        longest_s = max(longest_s, used.ru_utime + used.ru_stime - began)
        if number == 0:  # what the reader needs is loaded
            limit = _addresses() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    shared.say(count, longest_s)


def try_reader(name: str, count: int, seed: int, folder: Path) -> Result:
    """In a child."""
    shared = _Shared()
    inside = folder / name
    inside.mkdir(parents=True, exist_ok=True)
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(said)
            _child(READERS[name], count, seed, inside, shared)
            status = 0
        except BaseException:
            os.write(says, traceback.format_exc()[-3000:].encode(errors="replace"))
        finally:
            os._exit(status)
    os.close(says)
    with os.fdopen(said, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    done, longest_s, memory = shared.heard()
    failure = ""
    if status != 0:
        ended = os.waitstatus_to_exitcode(status)
        failure = f"the input of seed {seed + done}: ended with {ended}\n{text}"
    return Result(name, done, failure, longest_s, memory)


def main(words: list[str]) -> int:
    count, seed, folder = int(words[0]), int(words[1]), Path(words[2])
    status = 0
    for name in words[3:] or READERS:
        result = try_reader(name, count, seed, folder)
        print(
            f"{name:<14} {result.tried} inputs, the longest {result.longest_s:.2f} s, "
            f"{result.memory >> 20} MiB at most",
            flush=True,
        )
        if result.failure:
            print(result.failure, flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
