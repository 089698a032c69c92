"""Turns a torch.profiler trace into rows of a profile CSV, which are converted like all others.

Internal. The trace is read piece by piece: memory does not grow with it. Times are
`baseTimeNanoseconds` plus `ts`, taken from their digits and never through a float.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

CHUNK = 1 << 20
BASE = re.compile(rb'(?<!\\)"baseTimeNanoseconds"\s*:\s*"?(\d+)')
RANK = re.compile(rb'(?<!\\)"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)')
EVENTS = re.compile(r'(?<!\\)"traceEvents"\s*:\s*\[')
SPECIAL = re.compile(r'[,="%\r\n]')

HEADER = (
    b"timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
)
HOST = "torch.profiler"


class TorchTraceError(ValueError):
    """A file that is no trace of torch.profiler; the text names it."""


def _open(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def read_facts(path: Path) -> tuple[int, int | None]:
    """`baseTimeNanoseconds` (0 when the file has none), and the rank, when it is stated."""
    base, rank = None, None
    with _open(path) as handle:
        tail = b""
        while chunk := handle.read(CHUNK):
            window = tail + chunk
            base = base or BASE.search(window)
            rank = rank or RANK.search(window)
            tail = window[-4096:]
    return int(base[1]) if base else 0, int(rank[1]) if rank else None


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The elements of `traceEvents`; numbers with a point stay text."""
    decoder = json.JSONDecoder(parse_float=str)
    with _open(path) as raw:
        window, at, is_last = "", 0, False
        import codecs

        decode = codecs.getincrementaldecoder("utf-8")("replace").decode

        def more() -> bool:
            nonlocal window, at, is_last
            chunk = raw.read(CHUNK)
            is_last = not chunk
            window, at = window[at:] + decode(chunk, is_last), 0
            return not is_last

        while not (start := EVENTS.search(window)):
            at = max(0, len(window) - 64)
            if not more():
                raise TorchTraceError(f"{path}: holds no traceEvents")
        at = start.end()
        while True:
            while at < len(window) and window[at] in " \t\r\n,":
                at += 1
            if at < len(window) and window[at] == "]":
                return
            try:
                event, at = decoder.raw_decode(window, at)
            except json.JSONDecodeError:
                if not more():
                    raise TorchTraceError(f"{path}: the trace is cut off") from None
                continue
            if isinstance(event, dict):
                yield event


def nanoseconds(value: Any) -> int:
    """Microseconds, as an int or as digits, in nanoseconds; what is below one is cut off."""
    text = str(value)
    whole, _, decimals = text.partition(".")
    if "e" in text or "E" in text:
        from decimal import Decimal

        return int(Decimal(text) * 1000)
    sign = -1 if whole.startswith("-") else 1
    return int(whole or "0") * 1000 + sign * int((decimals + "000")[:3])


def _encode(text: str) -> str:
    return SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _pairs(event: dict[str, Any]) -> list[str]:
    found = [f"cat={_encode(str(event.get('cat', '')))}"]  # first: what follows is then the user's
    args = event.get("args")
    for key, value in (args if isinstance(args, dict) else {}).items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (dict, list)):
            value = json.dumps(value)
        found.append(f"{_encode(str(key))}={_encode(str(value))}")
    return found


class RowMaker:
    """Makes rows. `shift` maps a Unix time in nanoseconds to the offset that the run added."""

    def __init__(self, base_ns: int, shift: Callable[[int], int]) -> None:
        self._base_ns = base_ns
        self._shift = shift
        self._threads: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, str], str] = {}

    def rows(self, event: dict[str, Any]) -> Iterator[str]:
        phase = event.get("ph")
        place = str(event.get("pid", "")), str(event.get("tid", ""))
        if phase == "M":
            if event.get("name") == "thread_name":
                self._names[place] = str(event.get("args", {}).get("name", ""))
            return
        if "ts" not in event or phase not in ("X", "i", "I", "s", "f", "C"):
            return
        at_ns = self._base_ns + nanoseconds(event["ts"])
        at_ns += self._shift(at_ns)
        tid = self._threads.get(place)
        if tid is None:
            tid = self._threads[place] = len(self._threads) + 1
            label = self._names.get(place) or f"{place[0]} {place[1]}"
            yield self._row(
                at_ns, "my_utils.thread", "INSTANT", tid, [f"thread_name={_encode(label)}"]
            )
        name = str(event.get("name", ""))
        if phase == "X":
            length_ns = nanoseconds(event.get("dur", 0))
            yield self._row(at_ns + length_ns, name, "END", tid, _pairs(event), length_ns)
        elif phase in "sf":
            number = str(event.get("id", 0))
            number = str(int(number, 0)) if re.fullmatch(r"(0[xX])?[0-9a-fA-F]+", number) else "0"
            kind = "FLOW_START" if phase == "s" else "FLOW_END"
            yield self._row(at_ns, name, kind, tid, [f"id={number}"])
        elif phase == "C":
            args = event.get("args") or {}
            pairs = [f"{_encode(str(k))}={_encode(str(v))}" for k, v in args.items()]
            yield self._row(at_ns, name, "COUNTER", tid, pairs)
        else:
            yield self._row(at_ns, name, "INSTANT", tid, _pairs(event))

    @staticmethod
    def _row(
        at_ns: int, name: str, kind: str, tid: int, pairs: list[str], length_ns: int | None = None
    ) -> str:
        seconds, decimals = divmod(abs(at_ns), 10**9)
        sign = "-" if at_ns < 0 else ""
        length = "" if length_ns is None else f"{length_ns // 10**6}.{length_ns % 10**6:06d}"
        quoted = name.replace('"', '""')
        metadata = ",".join([f"tid={tid}", *pairs])
        return f'{sign}{seconds}.{decimals:09d},,{HOST},0,"{quoted}",{kind},{length},"{metadata}"\n'


def write_rows(path: Path, shift: Callable[[int], int], out: IO[bytes]) -> None:
    """The whole trace as a profile CSV."""
    base_ns, _ = read_facts(path)
    maker = RowMaker(base_ns, shift)
    out.write(HEADER)
    batch: list[str] = []
    for event in read_events(path):
        batch.extend(maker.rows(event))
        if len(batch) > 1000:
            out.write("".join(batch).encode("utf-8", "replace"))
            batch.clear()
    out.write("".join(batch).encode("utf-8", "replace"))
