"""Power losses made by hand: `python -m tests.faults.power_loss IMAGES SEED FOLDER`.

A real process records, and its journal and CSV are copied at several moments, some of them while
it writes. Nothing orders the pages of a mapped file on their way to the disk, nor those of the CSV:
an image takes each page of 4 KiB from any of these moments, or leaves it out. What the process
wrote in all is the truth. Each image is read as `csv2trace --recover` does, and some are recovered
as a restart does. Prints a line of JSON with what went wrong, which should be nothing.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from my_utils import _core

PAGE = 4096
JOURNAL_BYTES = 35168256
BOOT_ID_AT, BOOT_ID_BYTES = 88, 36
NAMES_AT, NAMES = 2 * PAGE, 4096  # an offset and a length each, then the bytes
CHUNKS_AT, CHUNK_BYTES, RING_AT, SLOT = 1089536, 532480, 2 * PAGE, 64
RECORD = struct.Struct("<4B2H2QqQQ2IQ")  # kind, event, flags, depth, name, slots, node, …, step, …
STAGE, EVENT = 1, 2
OTHER_BOOT = b"00000000-0000-4000-8000-000000000000"
NEWEST = "profile_rank_0.csv"
ADOPTED_EACH = 5
ROW = re.compile(rb"\d+\.\d{9},")
UNPROVEN = re.compile(rb"my_utils\.doubtful.*unproven=(\d+)")

VICTIM = """
import sys, threading
from my_utils import _core
from my_utils.utils import MyTimer
folder, names, rotate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_core.open_output(log_dir=folder, io="inline", max_csv_bytes=rotate)
timer, number = MyTimer(tag="t"), 0
def other():
    timer = MyTimer(tag="o")
    for line in iter(requests.get, None):
        for i in range(line):
            timer.start("of a thread %d" % (i % 7)); timer.stop("of a thread %d" % (i % 7))
        done.set()
import queue
requests, done = queue.Queue(), threading.Event()
threading.Thread(target=other, daemon=True).start()
timer.start("open all the time")
for line in sys.stdin:
    count, each = map(int, line.split())
    requests.put(count // 3)
    print("begun", flush=True)
    for i in range(count):
        number += 1
        timer.set_step(number)
        timer.start("outer"); timer.start("name %d" % (number % names))
        if number % 5 == 0:
            text = "x" * (number % 300)
            _core.log_event("event", "INSTANT", number, "i=%d,text=%s" % (number, text))
        timer.stop("name %d" % (number % names)); timer.stop("outer")
        if each and number % each == 0:
            timer.step()
    done.wait(); done.clear()
    print("done", flush=True)
"""

# (stages, steps between writes): 0 writes nothing
MOMENTS = [(40, 10), (300, 7), (0, 1), (900, 40), (57, 0), (2500, 100), (600, 0)]


Key = tuple[str, str]  # node, or the number of an event; type
Row = tuple[str, str]  # name, step


@dataclass
class Moment:
    """The files at one time: the journal's bytes in use, and the CSVs by name."""

    journal: bytes
    csvs: dict[str, bytes]


@dataclass
class Series:
    """What a process wrote: snapshots, and the true rows by their keys."""

    journal_name: str
    moments: list[Moment] = field(default_factory=list)
    truth: dict[Key, Row] = field(default_factory=dict)


@cache
def parsed(text: bytes) -> tuple[Key | None, Row, bool]:
    """The key of a row, its name and step, and whether it is marked. No key for rows of our own,
    for those that only open the next, and for repeated ones."""
    row = next(csv.reader(io.StringIO(text.decode())))
    marked = row[7].endswith(",doubtful=1")
    if row[4].startswith("my_utils.") or row[7].startswith("opens=") or "repeated=1" in row[7]:
        return None, (row[4], row[3]), marked
    metadata = dict(pair.split("=", 1) for pair in row[7].split(","))
    key = metadata.get("node_id") or f"event {metadata['i']}"
    return (key, row[5]), (row[4], row[3]), marked


def rows_of(data: bytes) -> list[bytes]:
    """The whole rows: a line with a zero in it is of two halves."""
    lines = [line.lstrip(b"\0") for line in data.split(b"\n")[:-1]]
    return [text for text in lines if ROW.match(text) and b"\0" not in text and text.endswith(b'"')]


def keys_of(rows: Iterable[bytes]) -> Counter[Key]:
    return Counter(key for text in rows if (key := parsed(text)[0]) is not None)


def record(folder: Path, names: int, rotate: int) -> Series:
    """Runs a process, and copies its files between and during its work."""
    folder.mkdir(parents=True)
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(folder), str(names), str(rotate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdin is not None and victim.stdout is not None
    series = Series("")
    seen: list[bytes] = []
    for count, each in [*MOMENTS, (1, 1)]:
        print(count, each, file=victim.stdin, flush=True)
        assert victim.stdout.readline() == "begun\n"
        [journal] = folder.glob("*.journal")
        series.journal_name = journal.name
        if count > 100:
            series.moments.append(snapshot(folder, journal))  # while it writes
        assert victim.stdout.readline() == "done\n"
        series.moments.append(snapshot(folder, journal))
        seen += series.moments[-1].csvs.values()
    victim.kill()
    victim.wait()
    seen.append(_core.recover_rows(folder / series.journal_name)[2])
    series.moments.pop()  # the last one only makes the truth whole
    for data in seen:
        for text in rows_of(data):
            key, row, _ = parsed(text)
            if key is not None:
                series.truth[key] = row
    return series


def snapshot(folder: Path, journal: Path) -> Moment:
    with open(journal, "rb") as file:
        data = file.read(4 << 20).rstrip(b"\0")
    csvs: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.csv"), reverse=True):
        csvs[path.name] = path.read_bytes()
    return Moment(data + bytes(-len(data) % PAGE), csvs)


def mixed(source: random.Random, pages: list[bytes]) -> bytes:
    """One page of each place, mostly of one or two of the moments."""
    usual = source.choice(pages), source.choice(pages)
    strange = source.choice([0, 0.02, 0.3])
    missing = source.choice([0, 0, 0.01])
    share = source.random()
    result = []
    for at in range(0, max(map(len, pages)), PAGE):
        origin = usual[source.random() < share]
        if source.random() < strange:
            origin = source.choice(pages)
        page = origin[at : at + PAGE].ljust(PAGE, b"\0")
        result.append(bytes(PAGE) if at > 0 and source.random() < missing else page)
    return b"".join(result)


def worn(source: random.Random, data: bytes) -> bytes:
    """A CSV that lost what was written last, or some pages of it."""
    how = source.choice(["as it is", "as it is", "cut", "zero tail", "hole", "no beginning"])
    at = source.randrange(len(data)) if data else 0
    page = at // PAGE * PAGE
    if how == "cut":
        return data[:at]
    if how == "zero tail":
        return data[:page] + bytes(len(data) - page)
    if how == "hole":
        return data[:page] + bytes(len(data[page : page + PAGE])) + data[page + PAGE :]
    if how == "no beginning" and source.random() < 0.3:
        return bytes(len(data[:PAGE])) + data[PAGE:]
    return data


def stage_of(record: tuple[int, ...], names: dict[int, str]) -> tuple[Key, Row]:
    return (str(record[6]), "END"), (names.get(record[4], ""), str(record[8]))


def event_of(record: tuple[int, ...], payload: bytes) -> tuple[Key, Row]:
    """No key where the payload is not one that VICTIM writes."""
    name_bytes, more_bytes = struct.unpack_from("<II", payload)
    name, more = payload[8 : 8 + name_bytes], payload[8 + name_bytes :][:more_bytes]
    number = record[8]
    is_whole = more == b"i=%d,text=%s" % (number, b"x" * (number % 300))
    return (f"event {number}" if is_whole else "", "INSTANT"), (name.decode(), str(number))


def held_by(journal: bytes, truth: dict[Key, Row]) -> set[Key]:
    """What the image holds from the first byte to the last of its record and of its name."""
    names: dict[int, str] = {}
    blob = NAMES_AT + 8 * NAMES
    for number in range(NAMES):
        offset, length = struct.unpack_from("<II", journal, NAMES_AT + 8 * number)
        names[number] = journal[blob + offset : blob + offset + length].decode(errors="replace")
    held: set[Key] = set()
    for chunk in range(CHUNKS_AT, len(journal) - CHUNK_BYTES + 1, CHUNK_BYTES):
        ring = journal[chunk + RING_AT : chunk + CHUNK_BYTES]
        if not any(ring):  # most of a journal is a hole
            continue
        for at, record in enumerate(RECORD.iter_unpack(ring)):
            if record[0] == STAGE and record[5] == 1:
                key, row = stage_of(record, names)
            elif record[0] == EVENT and 1 < record[5] < len(ring) // SLOT:
                begin, end = (at + 1) * SLOT, (at + record[5]) * SLOT
                key, row = event_of(record, (ring + ring)[begin:end])
            else:
                continue
            if truth.get(key) == row:
                held.add(key)
    return held


@dataclass
class Image:
    """The files after a power loss."""

    folder: Path
    journal: Path
    csvs: dict[str, bytes]
    other_boot: bool
    held: set[Key]  # by the journal; empty where files of the CSV were removed on purpose


def make_image(source: random.Random, series: Series, folder: Path) -> Image:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    journal = bytearray(mixed(source, [moment.journal for moment in series.moments]))
    other_boot = source.random() < 0.5
    if other_boot:
        journal[BOOT_ID_AT : BOOT_ID_AT + BOOT_ID_BYTES] = OTHER_BOOT
    path = folder / series.journal_name
    path.write_bytes(journal)
    with open(path, "r+b") as file:
        file.truncate(JOURNAL_BYTES)
    all_csvs = source.choice(series.moments).csvs
    csvs = dict(all_csvs)
    oldest = sorted(name for name in csvs if ".part" in name)
    for name in oldest[: source.choice([0, 0, len(oldest) // 2, len(oldest)])]:
        del csvs[name]  # as keep_csv_bytes does
    if NEWEST in csvs:  # a rotation moves it away before it begins the next one
        csvs[NEWEST] = worn(source, csvs[NEWEST])
    for name, data in csvs.items():
        (folder / name).write_bytes(data)
    was_removed = csvs.keys() != all_csvs.keys()
    held = set() if was_removed else held_by(bytes(journal), series.truth)
    return Image(folder, path, csvs, other_boot, held)


def check(image: Image, after: bytes, series: Series, said: bool) -> Counter[str]:
    """What must not be: of rows in the CSV before and after."""
    problems: Counter[str] = Counter()
    before = Counter(text for data in image.csvs.values() for text in rows_of(data))
    rows = Counter(rows_of(after))
    problems["removed"] = (before - rows).total()
    known = keys_of(before.elements())
    problems["doubled"] = sum(
        count > max(1, known[key]) for key, count in keys_of(rows.elements()).items()
    )
    for text in rows - before:
        key, row, marked = parsed(text)
        if key is not None:
            problems["never happened"] += key not in series.truth
            problems["wrong name or step"] += row != series.truth.get(key, row)
            problems["unmarked"] += said and not marked
    problems["not said"] = image.other_boot and not said
    if said:
        unproven = sum(map(int, UNPROVEN.findall(after)))
        problems["lost in silence"] = max(0, len(image.held - keys_of(rows).keys()) - unproven)
    return +problems


def read_only(image: Image) -> tuple[bytes, bool]:
    name, limit, rows = _core.recover_rows(image.journal)
    after = b""
    for part, data in image.csvs.items():
        is_limited = name is not None and Path(name).name == part
        after += data[:limit] if is_limited else data[: data.rfind(b"\n") + 1]
    return after + rows, b"my_utils.doubtful" in rows


def adopted(image: Image) -> tuple[bytes, bool]:
    """After a restart, and after one more when the first was killed while it wrote."""
    journal, current = image.journal.read_bytes(), image.folder / NEWEST
    after, said = restart(image)
    data, before = current.read_bytes(), image.csvs.get(NEWEST, b"")
    if data.startswith(before.rstrip(b"\0")[: before.rfind(b"\n") + 1]):
        current.write_bytes(data[: (len(data) + len(before)) // 2])
        write_sparse(image.journal, journal)
        for path in image.folder.glob("*.unreadable"):
            path.unlink()
        after, said_again = restart(image)
        said = said and said_again
    return after, said


def write_sparse(path: Path, data: bytes) -> None:
    """A journal is mostly a hole, and the disks are small."""
    with path.open("wb") as file:
        for at in range(0, len(data), PAGE):
            if any(page := data[at : at + PAGE]):
                file.seek(at)
                file.write(page)
        file.truncate(len(data))


def restart(image: Image) -> tuple[bytes, bool]:
    report = _core.open_output(log_dir=str(image.folder), io="inline")
    _core.close_output()
    assert not list(image.folder.glob("*.journal")), "the restart left the journal"
    files = sorted(image.folder.glob("*.csv"))
    return b"".join(path.read_bytes() for path in files), report["doubtful_journals"] > 0


def main() -> None:
    images, seed, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    series = [
        record(folder / "plain", 50, 0),
        record(folder / "names", 4500, 0),
        record(folder / "rotated", 50, 60_000),
    ]
    failed: dict[str, dict[str, int]] = {}
    totals: Counter[str] = Counter()
    for number in range(images):
        name = f"{seed}.{number}"
        source = random.Random(name)
        of = source.choice(series)
        image = make_image(source, of, folder / "image")
        ways = [("read", read_only)] + [("adopted", adopted)] * (number % ADOPTED_EACH == 0)
        for way, recover in ways:
            after, said = recover(image)
            problems = {
                f"{way}: {what}": count for what, count in check(image, after, of, said).items()
            }
            if problems:
                failed.setdefault(name, {}).update(problems)
            totals["said"] += said
            totals["rows added"] += after.count(b"doubtful=1")
            totals["unproven"] += b"unproven=0" not in after and said
    print(json.dumps({"failed": failed, "images": images, **totals}))
    if failed:
        sys.exit(f"the names begin with the seed: {failed}")


if __name__ == "__main__":
    main()
