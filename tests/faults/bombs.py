"""Small files that would take minutes or gigabytes, for each reader of files that others wrote.

    python -m tests.faults.bombs READER FOLDER [BOMB ...]

Each bomb of the reader's formats is read in a child with limits. Prints a line of JSON a bomb: how
the child ended, what it said, and what it took. A reader may refuse a file, or leave out what it
cannot take, and names the file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import mmap
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 60  # of the processor, a child of the reader's not counted
WAIT_S = 400  # in all
ADDRESSES = 6 << 30  # on top of what there is; a bounded child may have 4 GiB
TERABYTE = 1 << 40
DEEP = 200_000
MANY = 3_000_000
MIB = 1 << 20

CSV_HEAD = (
    b"timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
)
RUN = """
import os, signal, sys
from my_utils import _core
from my_utils.utils import MyTimer
_core.open_output(log_dir=sys.argv[1], rank=int(sys.argv[2]), world_size=2, io="inline")
timer = MyTimer()
for step in range(40):
    timer.set_step(step)
    timer.start("forward")
    timer.stop("forward")
    timer.step()
_core.close_output() if sys.argv[2] == "1" else os.kill(os.getpid(), signal.SIGKILL)
"""


# --- bombs, by format ---


def sparse(path: Path, head: bytes = b"") -> None:
    path.write_bytes(head)
    os.truncate(path, TERABYTE)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def circle(path: Path) -> None:
    other = path.with_name("circle")
    path.symlink_to(other)
    other.symlink_to(path)


def content(data: bytes | Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda path: void(path.write_bytes(data() if callable(data) else data))


def void(_: object) -> None:
    return None


Bombs = dict[str, Callable[[Path], None]]

NO_FILES: Bombs = {
    "a terabyte of nothing": sparse,
    "a FIFO": lambda path: os.mkfifo(path),
    "a device without end": link_to("/dev/zero"),
    "links in a circle": circle,
    "a folder": lambda path: path.mkdir(),
}

JSON: Bombs = {
    "deep lists": content(b"[" * DEEP),
    "deep objects": content(b'{"traceEvents":' * DEEP),
    "a long list": content(lambda: b"[" + b"0," * MANY + b"0]"),
    "a long number": content(lambda: b'{"rank": ' + b"9" * MANY + b"}"),
    "a long text": content(lambda: b'{"rank": "' + b"a" * 20 * MIB + b'"}'),
    "a long exponent": content(b'{"rank": 1e999999999999, "world_size": 1E+9999999}'),
    "a terabyte after the beginning": lambda path: sparse(path, b'{"traceEvents": ['),
}


def members(text: bytes, times: int) -> bytes:
    """Of gzip, one after the other: made in no time."""
    return gzip.compress(b'{"traceEvents": [') + gzip.compress(text) * times


GZIP: Bombs = {
    "zeros": content(lambda: members(bytes(10 * MIB), 150)),
    "spaces": content(lambda: members(b" " * 10 * MIB, 150)),
    "small events": content(lambda: members(b'{"ph": "M"},' * MIB, 100)),
    "one text": content(lambda: members(b'"' + b"a" * 10 * MIB, 150)),
    "deep lists in it": content(lambda: gzip.compress(b"[" * DEEP * 10)),
    "many empty members": content(lambda: gzip.compress(b"") * 500_000),
    "a terabyte after its head": lambda path: sparse(path, gzip.compress(b'{"traceEvents": [')),
}

CSV: Bombs = {
    "one line": content(lambda: CSV_HEAD + b"1" * 100 * MIB),
    "a quote that stays open": content(lambda: CSV_HEAD + b'1750000000.0,"' + b"a,\n" * 10 * MIB),
    "many columns": content(lambda: CSV_HEAD[:-1] + b",x" * MANY + b"\n" + b"1," * MANY + b"1\n"),
    "quotes alone": content(lambda: CSV_HEAD + b'"' * 20 * MIB),
    "bytes of zero": content(lambda: CSV_HEAD + bytes(100 * MIB)),
    "a terabyte after the header": lambda path: sparse(path, CSV_HEAD),
}


def rank_rows(number: str) -> bytes:
    """Rows of a profile with one number that is far away."""
    row = b'1750000000.%09d,,h,%s,s,INSTANT,,"tid=1"\n'
    return CSV_HEAD + b"".join(
        row % (turn, number.encode() if turn % 2 else b"1") for turn in range(50)
    )


START = b'1750000000.%09d,,h,1,%s,START,,"node_id=%d,parent_id=%d,tid=1"\n'


def names_that_meet() -> bytes:
    """Stages around stages whose full names are the same, in thousands of ways: x/x/x is also x/x
    with x inside, or x with x/x inside."""
    rows = [CSV_HEAD]
    ways = [(0, 0)]  # a stage, and how many x there are in its full name
    for parent, used in ways:
        for more in range(1, 14 - used):
            node = len(ways)
            ways.append((node, used + more))
            rows.append(START % (node, b"/".join([b"x"] * more), node, parent))
    return b"".join(rows)


PROFILE: Bombs = {
    **CSV,
    "a step far away": content(rank_rows(str(2**62))),
    "a step far below": content(rank_rows(str(-(2**62)))),
    "many names": content(
        lambda: (
            CSV_HEAD
            + b"".join(
                b'1750000000.%09d,,h,1,s%d,INSTANT,,"tid=%d"\n' % (turn, turn, turn)
                for turn in range(300_000)
            )
        )
    ),
    "names that meet": content(names_that_meet),
    "stages in stages": content(
        lambda: CSV_HEAD + b"".join(START % (n, b"s" * 200, n + 1, n) for n in range(100_000))
    ),
}


def journal(path: Path, *, size: int = 0, counts: bool = False) -> None:
    """That of the run's rank 0 under another name. counts: those of names and of chunks are far
    away."""
    [own] = path.parent.glob("rank_0.*.journal")
    own.rename(path)
    if size:
        os.truncate(path, size)
    if counts:
        with open(path, "r+b") as file:
            file.seek(JOURNAL_COUNTS_AT)
            file.write(b"\xff" * 8)


JOURNAL_COUNTS_AT = 1600  # of struct mu_journal_header
JOURNAL: Bombs = {
    "a terabyte after a journal": lambda path: journal(path, size=TERABYTE),
    "counts far away": lambda path: journal(path, counts=True),
}

TABLE_HEAD = b"rank,step,name,begin_us,end_us,group,lane\n"
TABLE: Bombs = {
    "many columns": content(lambda: TABLE_HEAD[:-1] + b",x" * MANY + b"\n" + b"1," * MANY + b"1\n"),
    "one line": content(lambda: TABLE_HEAD + b"1" * 100 * MIB),
    "a quote that stays open": content(lambda: TABLE_HEAD + b'1,1,"' + b"a,\n" * 10 * MIB),
    "ranks and steps far away": content(
        TABLE_HEAD
        + b"".join(
            b"%d,%d,gemm,%d,%d,all,1\n" % (2**61 * (n % 2), 2**60 * n, n, n + 1) for n in range(7)
        )
    ),
    "a terabyte after the header": lambda path: sparse(path, TABLE_HEAD),
}


def equal_rows(path: Path) -> None:
    """A million rows take as many bytes as one."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    count = 20 * MIB
    same = arrow.array([0], "int64").take(arrow.array([0] * MIB, "int64"))
    columns = [name.decode() for name in TABLE_HEAD.strip().split(b",")]
    table = arrow.table(dict.fromkeys(columns, same))
    with parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(count // MIB):
            writer.write_table(table)


def large_page(path: Path, *, dictionary: bool) -> None:
    """Its texts are of zeros, which compress well."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    size, count = 64 * MIB, 8
    texts = [chr(97 + number) + "\0" * size for number in range(count)]
    columns = [name.decode() for name in TABLE_HEAD.strip().split(b",")]
    numbers = arrow.array(range(count), "int64")
    table = arrow.table({name: texts if name == "name" else numbers for name in columns})
    parquet.write_table(table, path, compression="zstd", use_dictionary=dictionary)


def nested_schema(path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    kind = arrow.int64()
    for _ in range(90):
        kind = arrow.list_(kind)
    parquet.write_table(arrow.table({"rank": arrow.array([None], kind)}), path)


PARQUET: Bombs = {
    "equal rows": equal_rows,
    "a page of a gigabyte": lambda path: large_page(path, dictionary=False),
    "a dictionary of a gigabyte": lambda path: large_page(path, dictionary=True),
    "lists in lists": nested_schema,
    "a terabyte after the beginning": lambda path: sparse(path, b"PAR1"),
}

NCU_HEAD = b'"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
NCU: Bombs = {
    **CSV,
    "rows that do not end": content(lambda: NCU_HEAD + b'"0","7","k\n' * MIB),
    "many values": content(lambda: NCU_HEAD + b'"0","7","k","Duration","ms","2"\n' * MIB),
    "lines alone": content(lambda: NCU_HEAD + b"a\n" * 20 * MIB),
}

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
OF_KERNELS = "start, end, deviceId, streamId, correlationId, globalPid, shortName"


def database(path: Path, *texts: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file:
        for text in texts:
            file.execute(text)
        file.commit()


def kernels(count: int, correlation: str = "i") -> tuple[str, ...]:
    series = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {count}) "
    return (
        "CREATE TABLE StringIds (id, value)",
        "INSERT INTO StringIds VALUES (0, 'gemm')",
        f"CREATE TABLE {KERNELS} ({OF_KERNELS})",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid)",
        "CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid)",
        f"INSERT INTO {KERNELS} {series} SELECT i * 9, i * 9 + 5, i % 2, 7, {correlation}, "
        "16777216, 0 FROM n",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME {series} SELECT i * 9, i * 9 + 2, {correlation}, "
        "16777221 FROM n",
    )


def database_of_holes(path: Path) -> None:
    database(path, *kernels(100))
    os.truncate(path, TERABYTE)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT"
NSYS: Bombs = {
    "one number for all calls": lambda path: database(path, *kernels(60_000, "0")),
    "steps in steps": lambda path: database(
        path,
        *kernels(1000),
        "INSERT INTO NVTX_EVENTS WITH RECURSIVE n(i) AS "
        "(SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60000) "
        "SELECT i, 200000 - i, 'step ' || i, NULL, 16777221 FROM n",
    ),
    "generated columns": lambda path: database(
        path,
        f"CREATE TABLE {KERNELS} (start, end, deviceId, streamId, correlationId, globalPid, "
        "shortName AS (zeroblob(900000000)))",
        f"INSERT INTO {KERNELS} VALUES (0, 1, 0, 7, 0, 0)",
    ),
    "a view without end": lambda path: database(
        path,
        f"CREATE VIEW {KERNELS} AS {ENDLESS} i AS start, i + 1 AS end, 0 AS deviceId, "
        "0 AS streamId, 0 AS correlationId, 0 AS globalPid, 0 AS shortName FROM n",
    ),
    "names as a view without end": lambda path: database(
        path,
        *kernels(100)[2:3],
        *kernels(100)[5:6],
        f"CREATE VIEW StringIds AS {ENDLESS} i AS id, 'x' AS value FROM n",
    ),
    "a long text": lambda path: database(
        path, *kernels(100), "INSERT INTO StringIds VALUES (0, zeroblob(200000000))"
    ),
    "a terabyte after the tables": database_of_holes,
}

PICKLE: Bombs = {
    "a nested key": content(b"\x80\x02})" + b"\x85" * 2_000_000 + b"Ns."),
    "a key that holds itself": content(b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"Ns."),
    "a list that doubles": content(
        b"\x80\x02]q\x00(" + b"".join(b"h\x00h\x00\x86q\x00" for _ in range(64)) + b"e."
    ),
    "a list of many": content(lambda: b"\x80\x02](" + b"N" * 20 * MIB + b"e."),
    "bytes without end": content(b"\x80\x02\x8e" + (2**40).to_bytes(8, "little")),
    "a place far away": content(b"\x80\x02Nr\xff\xff\xff\x7f."),
    "a long number": content(lambda: b"\x80\x02\x8b" + MANY.to_bytes(4, "little") + b"\x7f" * MANY),
    "a number in digits": content(lambda: b"I" + b"9" * MANY + b"\n."),
    "marks alone": content(b"\x80\x02" + b"(" * MANY),
    "a terabyte after the beginning": lambda path: sparse(path, b"\x80\x02]("),
}


def archive(path: Path, data: bytes, kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as out:
        out.writestr("x/data.pkl", data)
        out.writestr("x/version", "3")


def archive_of(value: Callable[[], Any]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        import torch

        torch.save(value(), path)

    return make


def far_expanded() -> Any:
    import torch

    return {"format": "x", "version": 1, "roots": torch.zeros(1).expand(10**12)}


TORCH: Bombs = {
    "packed zeros": lambda path: archive(path, bytes(300 * MIB), zipfile.ZIP_DEFLATED),
    "deep in it": lambda path: archive(path, b"\x80\x02})" + b"\x85" * 2_000_000 + b"Ns."),
    "a list of many in it": lambda path: archive(path, b"\x80\x02](" + b"N" * 20 * MIB + b"e."),
    "many entries": lambda path: entries(path, 100_000),
    "a tensor of one number, far expanded": archive_of(far_expanded),
    "a terabyte after the beginning": lambda path: sparse(path, b"PK\x03\x04"),
}


def entries(path: Path, count: int) -> None:
    with zipfile.ZipFile(path, "w") as out:
        for number in range(count):
            out.writestr(f"x/data/{number}", b"")


# --- readers ---


@dataclass(frozen=True)
class Reader:
    """name: of the file, in the folder, where `{}` is a copy of a run if `has_run`. read: words of
    a command, or a function of the file. takes_pipes: a FIFO is read, and waited for. may_be_silent
    of these bombs: nothing in them is lost."""

    name: str
    bombs: Bombs
    read: list[str] | Callable[[Path], object]
    has_run: bool = False
    takes_pipes: bool = False
    may_be_silent: tuple[str, ...] = ()


SILENT = (
    *["a terabyte after a journal", "counts far away"],  # what counts is whole
    *["one line", "quotes alone", "bytes of zero"],  # of a CSV: a last row that was cut off
    *["a step far away", "a step far below", "many names"],  # good rows, all of which count
    *["names that meet", "stages in stages"],
)


# What a command does not need.
UNREAD = {
    "timeline": ("rank_0.7.7.journal", "run.json", "rank_0.heartbeat.json"),
    "trace": ("run.json",),
    "live --hung": ("profile_rank_0.csv", "run.json"),
}


def of_run(name: str, bombs: Bombs) -> dict[str, Reader]:
    """All commands that read a run."""
    commands = {
        "why": ["why", "{}", "--json"],
        "why --ledger": ["why", "{}", "--ledger", "--json"],
        "report": ["report", "{}", "-o", "{}/out.html"],
        "diff": ["diff", "{}", "{}"],
        "live": ["live", "{}", "--once"],
        "live --hung": ["live", "{}", "--hung", "5", "--json"],
        "trace": ["trace", "{}", "--recover", "-o", "{}/out.json"],
        "timeline": ["timeline", "{}", "--json"],
    }
    return {
        f"{key} {name}": Reader(
            name, bombs, words, has_run=True,
            may_be_silent=(*NO_FILES, *bombs) if name in UNREAD.get(key, ()) else SILENT,
        )
        for key, words in commands.items()
    }  # fmt: skip


def read_tensor(path: Path) -> object:
    from my_utils.dump_utils import DumpTensorIO

    return DumpTensorIO(path.parent.parent.parent).load(7, "tag", 0)


def read_states(path: Path) -> object:
    from my_utils.CtrlRandom.control_random import ControlRandom

    return ControlRandom.read_database(path)


def read_original(path: Path) -> object:
    from my_utils.profilers.operators.original_call import load_original_inputs

    return load_original_inputs(path)


READERS: dict[str, Reader] = {
    **of_run("profile_rank_0.csv", PROFILE),
    **of_run("rank_0.7.7.journal", JOURNAL),
    **of_run("run.json", JSON),
    **of_run("rank_0.heartbeat.json", JSON),
    "why trace": Reader("rank-0.json", JSON, ["why", "{}/rank-0.json"]),
    "why packed trace": Reader("rank-0.json.gz", GZIP, ["why", "{}/rank-0.json.gz"]),
    "why database": Reader(
        "run.sqlite",
        NSYS,
        ["why", "{}/run.sqlite"],
        # whole runs, of which nothing stands out
        may_be_silent=("one number for all calls", "steps in steps", "a terabyte after the tables"),
    ),
    "why table": Reader("operations.csv", TABLE, ["why", "{}/operations.csv"], takes_pipes=True),
    "why Parquet": Reader("operations.parquet", PARQUET, ["why", "{}/operations.parquet"]),
    "report --torch-trace": Reader(
        "other.json",
        JSON,
        ["report", "{}", "-o", "{}/out.html", "--torch-trace", "{}/other.json"],
        True,
    ),
    "report --torch-trace packed": Reader(
        "other.json.gz",
        GZIP,
        ["report", "{}", "-o", "{}/out.html", "--torch-trace", "{}/other.json.gz"],
        True,
    ),
    "trace --merge": Reader(
        "other.json",
        JSON,
        ["trace", "{}", "-o", "{}/out.json", "--merge", "{}/other.json"],
        has_run=True,
        takes_pipes=True,
    ),
    "trace --merge packed": Reader(
        "other.json.gz",
        GZIP,
        ["trace", "{}", "-o", "{}/out.json", "--merge", "{}/other.json.gz"],
        has_run=True,
        takes_pipes=True,
    ),
    "live --flight-recorder pickle": Reader(
        "dump_0", PICKLE, ["live", "{}", "--once", "--flight-recorder", "{}"], True
    ),
    "live --flight-recorder JSON": Reader(
        "dump_0", JSON, ["live", "{}", "--once", "--flight-recorder", "{}"], True
    ),
    "diverge": Reader("a.pt", TORCH, ["diverge", "{}/a.pt", "{}/a.pt"]),
    "ncu": Reader("a.csv", NCU, ["ncu", "{}/a.csv"], takes_pipes=True),
    "tensor": Reader("7/tag/rank_0.pt", TORCH, read_tensor),
    "random states": Reader("states.pt", TORCH, read_states),
    "inputs of an operator": Reader("call.pkl", PICKLE, read_original),
}


# --- children ---


def memory_now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def status_of(reader: Reader, folder: Path) -> object:
    """In the child."""
    from my_utils.cli.command import main

    if callable(reader.read):
        try:
            reader.read(folder / reader.name)
        except Exception as error:
            print(error, file=sys.stderr)
            return "raised " + type(error).__name__
        return 0
    try:
        return main([word.format(folder) for word in reader.read])
    except SystemExit as error:
        return error.code


def read_in_child(reader: Reader, folder: Path, said: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_now() + ADDRESSES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, resource.RLIM_INFINITY))
    signal.alarm(WAIT_S)
    status: object = "died"
    with (
        open(said, "w", encoding="utf-8", errors="replace") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            status = status_of(reader, folder)
        except BaseException:
            traceback.print_exc()
        print(f"\nstatus {json.dumps(status)}")


def in_child(call: Callable[[], None]) -> tuple[int, resource.struct_rusage]:
    """How it ended, and what it used."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    _, ended, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(ended), used


def try_bomb(reader: Reader, bomb: str, make: Callable[[Path], object], folder: Path) -> Any:
    shutil.rmtree(folder / "case", ignore_errors=True)
    case = folder / "case"
    if reader.has_run:
        shutil.copytree(folder / "run", case)
    path = case / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    said = folder / "said"
    made, _ = in_child(lambda: void(make(path)))  # what it takes is not the reader's
    assert made == 0, f"{bomb} was not made"
    ended, used = in_child(lambda: read_in_child(reader, case, said))
    text = said.read_text(encoding="utf-8")
    text, _, status = text.rpartition("\nstatus ")
    return {
        "bomb": bomb,
        "ended": ended,
        "status": json.loads(status) if status else None,
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "memory": used.ru_maxrss * 1024,
        "said": text,
    }


def bombs_of(reader: Reader) -> Bombs:
    bombs = {**NO_FILES, **reader.bombs}
    if reader.takes_pipes:
        del bombs["a FIFO"]
    return bombs


def main(words: list[str]) -> None:
    reader, folder = READERS[words[0]], Path(words[1])
    folder.mkdir(exist_ok=True)
    if reader.has_run and not (folder / "run").exists():
        (folder / "run").mkdir()
        for rank in "01":
            subprocess.run([sys.executable, "-c", RUN, folder / "run", rank], check=False)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception, SystemExit):
        status_of(reader, folder / "nothing")  # what it needs is loaded once
    for bomb, make in bombs_of(reader).items():
        if not words[2:] or bomb in words[2:]:
            print(json.dumps(try_bomb(reader, bomb, make, folder)), flush=True)
    shutil.rmtree(folder / "case", ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
