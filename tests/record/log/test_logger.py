"""The logger as one process sees it: text, rows, arguments. Files and processes: the next file."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import logging
import math
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from my_utils import _core
from my_utils.core import warnings as _warnings
from my_utils.logger import (
    FlushingFileHandler,
    GlobalLogger,
    SingletonMeta,
    get_global_logger,
)

from ...support.profile_rows import only_opens

HEADER = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
Bare = Callable[[], contextlib.AbstractContextManager[None]]
NOW_NS = 1_750_000_000_123_456_789


@pytest.fixture
def logger() -> Iterator[GlobalLogger]:
    """The logger of the process, not set up, with no warning given yet."""
    for kind in _warnings.counts():
        _warnings.forget(kind)
    logger = GlobalLogger()
    logger.close()
    yield logger
    logger.set_time_offset(0)
    logger.close()


@pytest.fixture
def running(logger: GlobalLogger, tmp_path: Path) -> GlobalLogger:
    logger.setup(tmp_path, rank=0, world_size=1, console=False, machine_id="host")
    return logger


@pytest.fixture
def bare_root() -> Bare:
    """Lets the root logger be as in a plain program; pytest adds its handlers at each phase."""

    @contextlib.contextmanager
    def without_handlers() -> Iterator[None]:
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, []
        try:
            yield
        finally:
            root.handlers = handlers

    return without_handlers


def lines_of(logger: GlobalLogger) -> list[str]:
    """The rows that users made, as text, in the order of the file."""
    logger.flush(30)
    assert logger.csv_path is not None
    text = logger.csv_path.read_text(encoding="utf-8")
    assert text.startswith(HEADER)
    lines = text[len(HEADER) :].splitlines(keepends=True)
    return [line for line in lines if ",my_utils." not in line and '"opens=' not in line]


def rows_of(logger: GlobalLogger) -> list[dict[str, str]]:
    logger.flush(30)
    assert logger.csv_path is not None
    with open(logger.csv_path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not only_opens(row)]
    assert all(None not in row and None not in row.values() for row in rows)
    return [row for row in rows if not row["event_name"].startswith("my_utils.")]


def pairs_of(row: dict[str, str]) -> dict[str, str]:
    """The metadata as any reader of percent codes gets it, without the tool's own tid."""
    pairs = [pair.split("=", 1) for pair in row["metadata"].split(",")]
    assert pairs[0] == ["tid", str(threading.get_native_id())]
    return {unquote(key): unquote(value) for key, value in pairs[1:]}


def text_of(folder: Path, name: str = "rank_0.log") -> str:
    return (folder / name).read_text(encoding="utf-8")


# --- singletons ----------------------------------------------------------------------------------


def test_second_construction_returns_the_same_object_and_runs_no_init() -> None:
    calls = []

    class Store(metaclass=SingletonMeta):
        def __init__(self, value: int) -> None:
            calls.append(value)
            self.value = value

    class Other(Store):
        pass

    assert Store(1) is Store(2)
    assert (Store(3).value, calls) == (1, [1])
    assert Other(4) is not Store(5)
    assert calls == [1, 4]


def test_a_singleton_whose_init_raises_is_made_by_the_next_construction() -> None:
    class Fragile(metaclass=SingletonMeta):
        def __init__(self, fails: bool) -> None:
            if fails:
                raise RuntimeError("not yet")

    with pytest.raises(RuntimeError, match="not yet"):
        Fragile(True)
    assert Fragile(False) is Fragile(True)


def test_sixteen_threads_get_one_singleton() -> None:
    made = []
    start = threading.Barrier(16)

    class Slow(metaclass=SingletonMeta):
        def __init__(self) -> None:
            time.sleep(0.01)
            made.append(self)

    found: list[Slow] = []

    def construct() -> None:
        start.wait()
        found.append(Slow())

    threads = [threading.Thread(target=construct) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert {id(item) for item in found} == {id(made[0])}


def test_a_singleton_may_construct_another_in_its_init() -> None:
    class Inner(metaclass=SingletonMeta):
        pass

    class Outer(metaclass=SingletonMeta):
        def __init__(self) -> None:
            self.inner = Inner()

    assert Outer().inner is Inner()


def test_global_logger_pickles_to_the_one_of_the_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    logger = GlobalLogger()
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(logger)) is logger
    assert copy.copy(logger) is logger
    assert copy.deepcopy({"logger": logger})["logger"] is logger


# --- text ----------------------------------------------------------------------------------------


def test_each_record_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    handler = FlushingFileHandler(path)
    for number in range(3):
        handler.emit(logging.makeLogRecord({"msg": f"line {number} ü"}))
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines == [f"line {i} ü" for i in range(number + 1)]
    handler.emit(logging.makeLogRecord({"msg": "\udcff is not a text"}))
    assert path.read_text(encoding="utf-8").endswith("\\udcff is not a text\n")
    handler.close()


def test_two_handlers_on_one_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    handlers = [FlushingFileHandler(path), FlushingFileHandler(path)]
    for number in range(10):
        handlers[number % 2].emit(logging.makeLogRecord({"msg": f"{number}"}))
    assert path.read_text().split() == [str(number) for number in range(10)]
    for handler in handlers:
        handler.close()


def test_a_full_disk_under_the_text_log_is_one_warning_and_a_count(
    logger: GlobalLogger, bare_root: Bare, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = FlushingFileHandler("/dev/full")
    log = logger.get_logger()
    log.addHandler(handler)
    with bare_root():
        for number in range(5):
            log.info("line %d", number)
    log.removeHandler(handler)
    handler.close()
    shown = capsys.readouterr().err
    assert shown.count("cannot write to the text log /dev/full (No space left on device)") == 1
    assert "Traceback" not in shown
    assert handler.failed == 6  # five lines and the warning itself


def test_before_setup_messages_are_shown_and_rows_are_kept(
    logger: GlobalLogger, bare_root: Bare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logger.get_logger()
    with bare_root():
        log.info("before %s", "setup")
    assert capsys.readouterr().err.endswith(" INFO before setup\n")
    logger.instant("early", step=4)
    logger.setup(tmp_path, console=False)
    kept = [(row["event_name"], row["step"]) for row in rows_of(logger)]
    assert kept.count(("early", "4")) == 1  # rows of earlier tests may have waited with it
    log.info("after")
    assert text_of(tmp_path).endswith(" [rank 0/1] INFO after\n")
    assert capsys.readouterr().err == ""


def test_before_setup_handlers_of_the_root_logger_get_the_messages(
    logger: GlobalLogger, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root.addHandler(handler)
    try:
        logger.get_logger().info("once")
    finally:
        root.removeHandler(handler)
    assert text.getvalue() == "once\n"
    assert capsys.readouterr().err == ""


def test_text_log_and_console_get_each_message_once_after_many_setups(
    logger: GlobalLogger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        logger.setup(tmp_path, rank=2, world_size=4, extra_log_label="Trainer 50%")
    logger.get_logger().info("hello")
    line = text_of(tmp_path, "rank_2.log").splitlines()
    assert len(line) == 1
    stamp, rest = line[0].split(" [", 1)
    datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f")
    assert rest == "rank 2/4 Trainer 50%] INFO hello"
    assert capsys.readouterr().err == line[0] + "\n"


def test_levels_filter_file_and_console(
    logger: GlobalLogger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.setup(tmp_path, level="warning")
    log = logger.get_logger()
    log.info("quiet")
    log.warning("loud")
    logger.setup(tmp_path, level=logging.DEBUG, console=False)
    log.debug("fine")
    assert [line.split("] ")[1] for line in text_of(tmp_path).splitlines()] == [
        "WARNING loud",
        "DEBUG fine",
    ]
    assert capsys.readouterr().err.count("\n") == 1


def test_root_handlers_do_not_see_messages_twice_and_get_them_back_after_close(
    logger: GlobalLogger, tmp_path: Path
) -> None:
    root, text = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(text)
    root.addHandler(handler)
    try:
        logger.setup(tmp_path, console=False)
        get_global_logger().warning("ours")
        logger.close()
        logging.getLogger("my_utils").warning("theirs")
    finally:
        root.removeHandler(handler)
    assert text.getvalue() == "theirs\n"
    assert text_of(tmp_path).count("\n") == 1


def test_a_handler_that_the_user_added_stays_through_setup_and_close(
    logger: GlobalLogger, tmp_path: Path
) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    log = logger.get_logger()
    log.addHandler(handler)
    try:
        logger.setup(tmp_path, console=False)
        log.warning("one")
        logger.close()
        log.warning("two")
    finally:
        log.removeHandler(handler)
    assert text.getvalue() == "one\ntwo\n"


# --- warnings ------------------------------------------------------------------------------------


def test_a_warning_of_a_kind_is_given_once_over_threads_and_counted(
    logger: GlobalLogger, tmp_path: Path
) -> None:
    logger.setup(tmp_path, console=False)
    given: list[bool] = []
    start = threading.Barrier(8)

    def warn() -> None:
        start.wait()
        for _ in range(50):
            given.append(_warnings.warn_once("test_kind", "100% full"))

    threads = [threading.Thread(target=warn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given.count(True) == 1
    assert _warnings.counts()["test_kind"] == 400
    assert text_of(tmp_path).count("WARNING 100% full\n") == 1


def test_the_c_part_warns_through_the_same_logger(logger: GlobalLogger, tmp_path: Path) -> None:
    logger.setup(tmp_path, console=False)
    timer = _core.Timer("warned")
    for _ in range(3):
        timer.stop("never started")
    assert timer.unmatched_stops == 3
    assert text_of(tmp_path).count("never started") == 1


# --- rows: bytes ---------------------------------------------------------------------------------


def expected_line(
    ns: int, step: int, name: str, kind: str, duration_ms: Decimal | None, metadata: str
) -> str:
    """A row by decimal, datetime and the csv module."""
    fields = io.StringIO()
    stamp = f"{Decimal(ns).scaleb(-9):.9f}"
    second = datetime.fromtimestamp(ns // 10**9)
    readable = f"{second:%Y-%m-%d %H:%M:%S}.{ns % 10**9 // 1000:06d}"
    duration = "" if duration_ms is None else f"{duration_ms:.6f}"
    row = [stamp, readable, "host", str(step), name, kind, duration]
    csv.writer(fields, lineterminator="").writerow(row)
    text = f"tid={threading.get_native_id()}" + ("," if metadata else "") + metadata
    return fields.getvalue() + ',"' + text.replace('"', '""') + '"\n'


@pytest.mark.parametrize(
    ("name", "metadata", "written"),
    [
        ("plain", None, ""),
        ("plain", "", ""),
        ('comma, quote " and ü', "k=v,l=2", "k=v,l=2"),
        ("text as it is", 'a="b",%2C', 'a="b",%2C'),
        ("line ends", "a=1\r\nb=2\n", "a=1%0D%0Ab=2%0A"),
        ("encoded", {"a,b=c": 'd"e%f\r\ng'}, "a%2Cb%3Dc=d%22e%25f%0D%0Ag"),
        ("types", {"t": True, "f": False, "i": -3, "n": None}, "t=true,f=false,i=-3,n="),
        ("floats", {"x": 0.1, "y": 1e300, "z": math.inf}, "x=0.1,y=1e+300,z=inf"),
        ("numpy", {"i": np.int64(3), "f": np.float64(0.1)}, "i=3,f=0.1"),
        ("paths", {"p": Path("/a=b")}, "p=/a%3Db"),
        ("known keys", {"id": 3, "node_id": 4}, "id=3,node_id=4"),
    ],
)
def test_a_row_to_the_byte(running: GlobalLogger, name: str, metadata: Any, written: str) -> None:
    running.log_profile_event(None, 7, name, "END", 12.5, metadata, timestamp_ns=NOW_NS)
    assert lines_of(running) == [expected_line(NOW_NS, 7, name, "END", Decimal("12.5"), written)]


def test_every_event_type_is_written_by_its_name(running: GlobalLogger) -> None:
    types = ["START", "END", "INSTANT", "COUNTER"]
    types += ["ASYNC_START", "ASYNC_END", "FLOW_START", "FLOW_END"]
    for offset, kind in enumerate(types):
        running.log_profile_event(None, 0, "e", kind, timestamp_ns=NOW_NS + offset)
    assert [row["event_type"] for row in rows_of(running)] == types


def test_random_times_and_durations_against_decimal(running: GlobalLogger) -> None:
    """Floats, ints, Decimals and Fractions, each rounded once to the nearest nanosecond."""
    generator = random.Random(20)
    wanted = []
    for number in range(500):
        seconds: Any = generator.uniform(1e9, 2e9)
        duration: Any = generator.expovariate(0.1)
        if number % 4 == 1:
            seconds = Decimal(seconds).quantize(Decimal("1e-12"))
        elif number % 4 == 2:
            seconds, duration = int(seconds), Fraction(generator.randrange(10**9), 7)
        elif number % 4 == 3:
            seconds, duration = np.float32(seconds), np.float64(duration)
        running.log_profile_event(seconds, number, "r", "END", duration)
        ns = round(Fraction(seconds if isinstance(seconds, Decimal) else float(seconds)) * 10**9)
        duration_ns = round(Fraction(duration) * 10**6)
        wanted.append((number, ns, Decimal(duration_ns).scaleb(-6)))
    found = [
        (int(row["step"]), int(Decimal(row["timestamp_unix"]) * 10**9), Decimal(row["duration_ms"]))
        for row in rows_of(running)
    ]
    assert sorted(found) == wanted


def test_a_tie_between_two_nanoseconds_goes_to_the_even_one(running: GlobalLogger) -> None:
    for half in ("0.0000000005", "0.0000000015", "0.0000000025"):
        running.log_profile_event(Decimal("1750000000") + Decimal(half), 0, "tie", "INSTANT")
    assert sorted(row["timestamp_unix"][-1] for row in rows_of(running)) == ["0", "2", "2"]


def test_durations_of_any_size_are_rounded_once_to_the_even_nanosecond(
    running: GlobalLogger,
) -> None:
    """Ties, below and above half of a nanosecond, and the largest, against exact fractions."""
    halves = [place / 128 for place in (1, 3, 5, -1, -3)]  # 7812.5 ns and so on
    small = [0.0, 5e-324, 2.0**-64, 4.9e-7, 5.1e-7, 2.0**-21, -4.9e-7]
    large = [4.6e12, -4.6e12, 4_500_000_000_000, 9.2e12]
    wanted = {}
    for number, duration in enumerate([*halves, *small, *large]):
        running.log_profile_event(None, number, "r", "END", duration)
        wanted[number] = Decimal(round(Fraction(duration) * 10**6)).scaleb(-6)
    found = {int(row["step"]): Decimal(row["duration_ms"]) for row in rows_of(running)}
    assert found == wanted


def test_metadata_of_one_line_is_taken_as_it_is(running: GlobalLogger) -> None:
    texts = {"loss=0.5": "loss=0.5", "name=größer": "name=größer", "a=1\r\nb=2": "a=1%0D%0Ab=2"}
    for step, text in enumerate(texts):
        running.log_profile_event(None, step, "m", "INSTANT", metadata=text)
    found = {int(row["step"]): row["metadata"] for row in rows_of(running)}
    for step, wanted in enumerate(texts.values()):
        assert found[step].endswith(wanted)


def test_times_before_1970_keep_their_sign(running: GlobalLogger) -> None:
    running.log_profile_event(-1.25, 0, "old", "INSTANT")
    assert rows_of(running)[0]["timestamp_unix"] == "-1.250000000"


def test_without_a_time_it_is_now(running: GlobalLogger) -> None:
    before = time.time_ns()
    running.log_profile_event(None, 0, "now", "INSTANT")
    running.instant("now")
    after = time.time_ns()
    for row in rows_of(running):
        # The time is of a counter that is aligned with the clock to about a microsecond.
        assert before - 50_000 <= int(Decimal(row["timestamp_unix"]) * 10**9) <= after + 50_000


def test_a_time_near_zero_is_taken_as_given_and_warned_about_once(
    running: GlobalLogger, tmp_path: Path
) -> None:
    for step in range(3):
        running.log_profile_event(timestamp=0.0, step=step, event_name="warmup", event_type="START")
    assert [row["timestamp_unix"] for row in rows_of(running)] == ["0.000000000"] * 3
    assert text_of(tmp_path).count("timestamp 0 s for 'warmup'") == 1


def test_timestamp_ns_stands_before_the_timestamp(running: GlobalLogger, tmp_path: Path) -> None:
    running.log_profile_event(0.0, 0, "exact", "INSTANT", timestamp_ns=NOW_NS)
    assert rows_of(running)[0]["timestamp_unix"] == "1750000000.123456789"
    assert "WARNING" not in text_of(tmp_path)


def test_time_offset_shifts_what_comes_later_and_says_so(
    running: GlobalLogger, tmp_path: Path
) -> None:
    running.log_profile_event(None, 0, "a", "INSTANT", timestamp_ns=NOW_NS)
    running.set_time_offset(-1.5)
    running.log_profile_event(None, 0, "b", "INSTANT", timestamp_ns=NOW_NS)
    running.set_time_offset(Decimal("0.000000001"))
    running.log_profile_event(None, 0, "c", "INSTANT", timestamp_ns=NOW_NS)
    times = {row["event_name"]: row["timestamp_unix"] for row in rows_of(running)}
    assert times == {
        "a": "1750000000.123456789",
        "b": "1749999998.623456789",
        "c": "1750000000.123456790",
    }
    text = (tmp_path / "profile_rank_0.csv").read_text()
    assert [line.split("offset_ns=")[1][:-1] for line in text.split() if "offset_ns=" in line] == [
        "-1500000000",
        "1",
    ]


# --- rows: the methods ---------------------------------------------------------------------------


def test_methods_write_their_types_with_their_metadata(running: GlobalLogger) -> None:
    running.instant("checkpoint", {"path": "a,b.pt", "id": 9, "tag": "x"}, step=1)
    running.counter("loss", 0.25, step=2)
    running.counter("memory", {"allocated": 1 << 40, "peak,max": 0.1, "ok": True}, step=3)
    running.async_start("upload", 7, {"bytes": 4096}, step=4)
    running.async_end("upload", 7, step=5)
    running.flow_start("batch", 0, "note=text", step=6)
    running.flow_end("batch", 10**18 - 1, step=7)
    found = [
        (row["step"], row["event_name"], row["event_type"], row["duration_ms"], pairs_of(row))
        for row in rows_of(running)
    ]
    assert found == [
        ("1", "checkpoint", "INSTANT", "", {"path": "a,b.pt", "id": "9", "tag": "x"}),
        ("2", "loss", "COUNTER", "", {"value": "0.25"}),
        ("3", "memory", "COUNTER", "", {"allocated": str(1 << 40), "peak,max": "0.1", "ok": "1"}),
        ("4", "upload", "ASYNC_START", "", {"id": "7", "bytes": "4096"}),
        ("5", "upload", "ASYNC_END", "", {"id": "7"}),
        ("6", "batch", "FLOW_START", "", {"id": "0", "note": "text"}),
        ("7", "batch", "FLOW_END", "", {"id": str(10**18 - 1)}),
    ]


def test_keys_with_a_meaning_of_their_own_are_hidden_from_readers(running: GlobalLogger) -> None:
    running.instant("e", {"tid": 1, "tag": "t"})
    assert rows_of(running)[0]["metadata"].endswith(",%74id=1,%74ag=t")


def test_an_event_without_a_step_takes_the_one_that_a_timer_set_last(
    running: GlobalLogger,
) -> None:
    timer, other = _core.Timer("first"), _core.Timer("second")
    timer.set_step(41)
    other.set_step(42)
    running.instant("a")
    timer.set_step(-43)
    running.log_profile_event(None, None, "b", "INSTANT")
    running.counter("c", 1, step=0)
    assert [(row["event_name"], row["step"]) for row in rows_of(running)] == [
        ("a", "42"),
        ("b", "-43"),
        ("c", "0"),
    ]


def test_rows_of_a_thread_stay_in_order_and_carry_its_tid(running: GlobalLogger) -> None:
    tids: dict[str, int] = {}

    def record(name: str) -> None:
        tids[name] = threading.get_native_id()
        for step in range(200):
            running.instant(name, step=step)

    threads = [threading.Thread(target=record, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = rows_of(running)
    assert len(rows) == 1600
    for name, tid in tids.items():
        own = [row for row in rows if row["event_name"] == name]
        assert [int(row["step"]) for row in own] == list(range(200))
        assert {row["metadata"] for row in own} == {f"tid={tid}"}


def test_long_names_and_metadata_are_cut_on_a_character(running: GlobalLogger) -> None:
    running.log_profile_event(None, 0, "ü" * 200, "INSTANT", metadata={"k": "ä" * 40000})
    row = rows_of(running)[0]
    assert row["event_name"] == "ü" * 127
    assert set(pairs_of(row)["k"]) == {"ä"}
    assert len(row["metadata"].encode()) <= 32768 + 40


# --- arguments -----------------------------------------------------------------------------------

BAD_SETUPS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"log_dir": 3}, TypeError, "log_dir must be a str or a path, not int"),
    ({"log_dir": b"logs"}, TypeError, "log_dir must be a str or a path, not bytes"),
    (
        {"log_dir": ""},
        ValueError,
        "log_dir must be a path that is not empty and has no NUL, not ''",
    ),
    ({"log_dir": "/" + "x" * 2000}, ValueError, "log_dir must have at most 900 bytes, not 2001"),
    ({"rank": "0"}, TypeError, "rank must be an int, not str"),
    ({"rank": True}, TypeError, "rank must be an int, not bool"),
    ({"rank": 1.0}, TypeError, "rank must be an int, not float"),
    ({"rank": -1}, ValueError, "rank must be from 0 to 2147483646, not -1"),
    ({"world_size": 0}, ValueError, "world_size must be from 1 to 2147483647, not 0"),
    ({"rank": 4, "world_size": 4}, ValueError, "rank must be below world_size (4), not 4"),
    ({"extra_log_label": None}, TypeError, "extra_log_label must be a str, not NoneType"),
    (
        {"extra_log_label": "a\nb"},
        ValueError,
        "extra_log_label must be printable and on one line, not 'a\\nb'",
    ),
    (
        {"extra_log_label": "ü" * 64},
        ValueError,
        "extra_log_label must have at most 127 bytes, not 128",
    ),
    (
        {"level": "LOUD"},
        ValueError,
        "level must be a number or a level's name such as INFO, not 'LOUD'",
    ),
    ({"level": None}, TypeError, "level must be an int, not NoneType"),
    ({"console": 1}, TypeError, "console must be a bool, not int"),
    ({"max_csv_bytes": 1.5}, TypeError, "max_csv_bytes must be an int, not float"),
    (
        {"max_csv_bytes": 1000, "keep_csv_bytes": 999},
        ValueError,
        "keep_csv_bytes must be 0 (keep all) or at least max_csv_bytes (1000), not 999",
    ),
    ({"io": "fast"}, ValueError, 'io must be "auto", "inline" or "background", not \'fast\''),
    ({"journal_dir": 1}, TypeError, "journal_dir must be a str or a path, not int"),
    ({"machine_id": "x" * 256}, ValueError, "machine_id must have at most 255 bytes, not 256"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_SETUPS)
def test_bad_arguments_of_setup_are_named_and_change_nothing(
    running: GlobalLogger,
    tmp_path: Path,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    before = _core.output_state()
    with pytest.raises(error) as caught:
        running.setup(**{"log_dir": tmp_path / "other", **arguments})
    assert str(caught.value) == message
    assert _core.output_state() == before
    assert not (tmp_path / "other").exists()


def event(**changed: Any) -> Callable[[GlobalLogger], None]:
    arguments = {"timestamp": 1.75e9, "step": 0, "event_name": "e", "event_type": "END", **changed}
    return lambda logger: logger.log_profile_event(**arguments)


BAD_EVENTS: list[tuple[Callable[[GlobalLogger], None], type[Exception], str]] = [
    (event(timestamp="now"), TypeError, "timestamp must be a number, not str"),
    (event(timestamp=True), TypeError, "timestamp must be a number, not bool"),
    (event(timestamp=1j), TypeError, "timestamp must be a real number, not complex"),
    (event(timestamp=math.nan), ValueError, "timestamp must be finite, not nan"),
    (event(timestamp=math.inf), ValueError, "timestamp must be finite, not inf"),
    (
        event(timestamp=1.75e12),
        ValueError,
        "timestamp must be from -4611686019 to 4611686018, not 1750000000000.0",
    ),
    (event(timestamp_ns=1.5), TypeError, "timestamp_ns must be an int, not float"),
    (event(step="3"), TypeError, "step must be an int, not str"),
    (
        event(step=2**63),
        ValueError,
        f"step must be from -{2**63} to {2**63 - 1}, not {2**63}",
    ),
    (event(event_name=None), TypeError, "event_name must be a str, not NoneType"),
    (
        event(event_type="BEGIN"),
        ValueError,
        "event_type must be START, END, INSTANT, COUNTER, ASYNC_START, ASYNC_END, FLOW_START or "
        "FLOW_END, not 'BEGIN'",
    ),
    (event(duration_ms=math.nan), ValueError, "duration_ms must be finite, not nan"),
    (event(metadata=[1]), TypeError, "metadata must be a str, a mapping or None, not list"),
    (event(metadata={1: 2}), TypeError, "keys of metadata must be str, not int"),
    (event(metadata={"": 2}), ValueError, "keys of metadata must not be empty"),
    (
        lambda logger: logger.counter("c", "1"),  # type: ignore[arg-type]
        TypeError,
        "value of a counter must be an int or a float, not str",
    ),
    (
        lambda logger: logger.counter("c", {}),
        ValueError,
        "value must be a number or a mapping with at least one, not empty",
    ),
    (
        lambda logger: logger.async_start("a", "7"),  # type: ignore[arg-type]
        TypeError,
        "id must be an int, not str",
    ),
    (
        lambda logger: logger.flow_end("a", 10**18),
        ValueError,
        "id must be from 0 to 999999999999999999, not 1000000000000000000",
    ),
    (
        lambda logger: logger.set_time_offset(math.inf),
        ValueError,
        "offset_s must be finite, not inf",
    ),
    (
        lambda logger: logger.set_time_offset("1"),  # type: ignore[arg-type]
        TypeError,
        "offset_s must be a number, not str",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_EVENTS)
def test_bad_arguments_of_events_are_named_and_write_nothing(
    running: GlobalLogger,
    call: Callable[[GlobalLogger], None],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error) as caught:
        call(running)
    assert str(caught.value) == message
    assert rows_of(running) == []


def test_a_tensor_as_counter_is_refused_for_its_item_may_wait(running: GlobalLogger) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="value of a counter must be an int or a float, not Tensor"):
        running.counter("loss", torch.tensor(1.0))
    running.counter("loss", torch.tensor(1.0).item())


# --- rank and world size -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, {}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {}, (3, 8)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, {}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, {}, (1, 2)),
        ({"RANK": "1", "SLURM_PROCID": "2", "OMPI_COMM_WORLD_RANK": "3"}, {}, (1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {"rank": 0}, (0, 8)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {"rank": 0, "world_size": 1}, (0, 1)),
        ({"RANK": "one", "SLURM_PROCID": "2"}, {}, (2, 3)),
        ({"RANK": "", "OMPI_COMM_WORLD_RANK": "5"}, {"world_size": 6}, (5, 6)),
        ({}, {"rank": 3}, (3, 4)),
    ],
)
def test_rank_unset_comes_from_the_launcher_and_given_stays(
    logger: GlobalLogger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: dict[str, int],
    expected: tuple[int, int],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    logger.setup(tmp_path, console=False, **arguments)  # type: ignore[arg-type]
    assert (logger.rank, logger.world_size) == expected
    assert logger.csv_path == tmp_path / f"profile_rank_{expected[0]}.csv"
    assert (tmp_path / f"rank_{expected[0]}.log").exists()
    text = (tmp_path / f"profile_rank_{expected[0]}.csv").read_text()
    assert f",rank={expected[0]},world_size={expected[1]},attempt=1," in text


def test_a_rank_that_is_no_number_is_passed_over_with_a_warning(
    logger: GlobalLogger,
    bare_root: Bare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "zero")
    with bare_root():
        logger.setup(tmp_path, console=False)
    shown = capsys.readouterr().err
    assert "RANK in the environment should be a number from 0 on, not 'zero'" in shown


def test_state_is_told_by_properties(logger: GlobalLogger, tmp_path: Path) -> None:
    assert (logger.is_set_up, logger.log_dir, logger.csv_path) == (False, None, None)
    logger.setup(os.path.relpath(tmp_path), console=False)
    assert (logger.is_set_up, logger.log_dir) == (True, tmp_path)
    assert logger.csv_path == tmp_path / "profile_rank_0.csv"
    logger.close()
    logger.close()
    assert not logger.is_set_up
    assert str(logger.csv_path) == "None"


# --- calls in the order of others: log_dir, level, rank, world_size ------------------------------


@pytest.mark.parametrize(
    "args, kwargs, level, rank, world_size",
    [
        (("WARNING", 3), {}, logging.WARNING, 3, 4),
        (("debug",), {"rank": 1, "world_size": 2}, logging.DEBUG, 1, 2),
        ((logging.INFO, 3), {}, logging.INFO, 3, 4),
        ((logging.INFO, 3, 8), {}, logging.INFO, 3, 8),
        ((logging.INFO, 40, 64), {}, logging.INFO, 40, 64),
        ((logging.ERROR,), {"rank": 2}, logging.ERROR, 2, 3),
        ((20, 64), {}, logging.INFO, 20, 64),
        ((20,), {}, logging.INFO, 20, 21),
        ((3, 8, "label", "ERROR"), {}, logging.ERROR, 3, 8),
    ],
)
def test_the_level_may_come_second(
    logger: GlobalLogger,
    tmp_path: Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    level: int,
    rank: int,
    world_size: int,
) -> None:
    logger.setup(tmp_path, *args, **{"console": False, **kwargs})
    assert (logger.rank, logger.world_size) == (rank, world_size)
    assert logger.get_logger().level == level
    assert (tmp_path / f"rank_{rank}.log").exists()


def test_a_level_twice_raises(logger: GlobalLogger, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got level='INFO', and by position level='ERROR'"):
        logger.setup(tmp_path, "ERROR", 0, level="INFO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank must be below world_size"):
        logger.setup(tmp_path, 3, 2)


def test_lines_show_the_data_parallel_rank(logger: GlobalLogger, tmp_path: Path) -> None:
    logger.setup(
        tmp_path, rank=3, world_size=8, extra_log_label="Trainer", console=False,
        data_parallel_rank=1, data_parallel_world_size=4,
    )  # fmt: skip
    logger.get_logger().info("hello")
    logger.close()
    assert " [rank 3/8 dp 1/4 Trainer] INFO hello" in (tmp_path / "rank_3.log").read_text()
    with pytest.raises(ValueError, match="data_parallel_rank must be"):
        logger.setup(tmp_path, data_parallel_rank=-1)


def test_lines_show_a_data_parallel_world_size_alone(logger: GlobalLogger, tmp_path: Path) -> None:
    logger.setup(tmp_path, rank=3, world_size=8, console=False, data_parallel_world_size=4)
    logger.get_logger().info("hello")
    logger.close()
    assert " [rank 3/8 dp ?/4] INFO hello" in (tmp_path / "rank_3.log").read_text()
    with pytest.raises(ValueError, match="data_parallel_world_size must be"):
        logger.setup(tmp_path, data_parallel_world_size=0)
