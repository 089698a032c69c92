"""A run that hosts have sent to an address, as folders of this machine.

They are in a folder for temporary files, which is removed at the end of the process. Names and
sizes come from the lists of the hosts, which are checked, and never from what the place lists.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shutil
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

from ..files import atomic_write
from ..printable import printable
from ..process_end import call_at_end
from ..trusted_open import open_without_waiting
from .copied import LIST, note_copy
from .hosts import HOST_FILE, HOSTS_FOLDER, host_file, is_of_a_host
from .sent_list import (
    EVERY_S,
    GROWING,
    JOURNAL,
    LIST_BYTES_MAX,
    PIECE_BYTES,
    Sent,
    SentFile,
    rank_of,
    read_list,
)
from .stores import Store, describe_error, shown

READERS = 16  # threads, which wait for answers
HOSTS_MAX = 20_000
LISTED_S = 120.0  # of waiting for the list of what is at an address
BYTES_MAX = 8 << 30  # of one run
LIVE_BYTES_MAX = 256 << 20  # of CSVs, where only the newest rows are wanted
JOURNAL_BYTES_MAX = 256 << 20
FRESH_S = 2.5 * EVERY_S  # after which a host that sends nothing is not heard of

_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,150}")


@dataclass
class _Host:
    """name: of its folder at the address, "" for the address itself. have: what is here of it."""

    name: str
    folder: str
    sent: Sent
    have: dict[str, SentFile] = field(default_factory=dict)
    changed_s: float | None = None  # when its list was seen to change; monotonic


class Fetched:
    """The newest run at an address. only_newest: of the CSVs not much more than the newest 256 MB.

    top: a folder with those of its hosts, `folders`. how: one sentence about it. problems: a line
    for each thing that was left out. Raises OSError where the place cannot be read or holds no run,
    ImportError where a package is missing.
    """

    def __init__(self, address: str, *, only_newest: bool = False) -> None:
        self._store = Store(address)
        self._address = address
        self._only_newest = only_newest
        self.problems: list[str] = []
        lists = self._lists(self._host_names())
        if not lists:
            reason = "; ".join(self.problems[:3]) or "my_utils run --to has sent nothing there"
            raise FileNotFoundError(errno.ENOENT, reason, shown(address))
        chosen, count = _newest_run(lists)
        self.how = f"the newest of {count} runs at {shown(address)} is read" if count > 1 else ""
        self.top = _temporary_folder()
        self._hosts = [
            _Host(name, os.path.join(self.top, name or "host"), sent) for name, sent in chosen
        ]
        self.folders = [host.folder for host in self._hosts]
        here = {name for name, _ in chosen}
        self._others = {name for name, _ in lists} - here  # hosts of other runs
        note_copy(self.top, address, time.time())
        self._get_all()

    def refresh(self) -> None:
        """Gets what has changed, and hosts that have joined the run: each is a folder in that of
        the first host, as those are that send to it. OSError where the place cannot be read."""
        self.problems.clear()
        fresh = dict(self._lists([host.name for host in self._hosts]))
        for host in self._hosts:
            if host.name in fresh and fresh[host.name].sent != host.sent.sent:
                host.sent, host.changed_s = fresh[host.name], time.monotonic()
        self._hosts += self._joined()
        self._get_all()
        for host in self._hosts:
            if is_of_a_host(host.folder):
                _write_host_file(host)

    def _joined(self) -> list[_Host]:
        """Hosts of this run that had sent nothing before."""
        known = {host.name for host in self._hosts} | self._others
        if "" in known:  # the address is that of one host
            return []
        found = []
        for name, sent in self._lists([one for one in self._host_names() if one not in known]):
            if self._is_of_this_run(sent):
                place = os.path.join(self._hosts[0].folder, HOSTS_FOLDER, name)
                found.append(_Host(name, place, sent, changed_s=time.monotonic()))
            else:
                self._others.add(name)
        return found

    def _is_of_this_run(self, sent: Sent) -> bool:
        """By its id, or without one by the clocks, as `_newest_run` says."""
        ours = [host.sent for host in self._hosts]
        if sent.run_id or ours[0].run_id:
            return sent.run_id == ours[0].run_id
        begin_s, end_s = min(one.began for one in ours), max(one.sent for one in ours)
        return sent.began <= end_s and sent.sent >= begin_s

    def keep_fresh(self, every_s: float) -> None:
        """Refreshes from a thread until this process ends. What fails is tried again."""

        def go_on() -> None:
            while True:
                time.sleep(every_s)
                try:
                    self.refresh()
                except Exception as error:  # the next one may be better; ages grow meanwhile
                    self.problems.append(describe_error(error))

        threading.Thread(target=go_on, name="my_utils refresh", daemon=True).start()

    # --- the lists ---

    def _host_names(self) -> list[str]:
        """Those that may be of hosts; "" where the address is that of one host."""
        names = self._listed()
        if LIST in names:
            return [""]
        found = [name for name in names if _HOST.fullmatch(name)]
        if len(found) > HOSTS_MAX:
            reason = f"more than {HOSTS_MAX} names are there: it is no place of a run"
            raise OSError(errno.E2BIG, reason, self._store.shown)
        return found

    def _listed(self) -> list[str]:
        """In a thread, as a place may list names without end, and not answer."""
        found: list[str] = []
        failed: list[OSError] = []

        def get() -> None:
            try:
                found.extend(self._store.names())
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=get, name="my_utils list", daemon=True)
        thread.start()
        thread.join(LISTED_S)
        if thread.is_alive():
            reason = f"it did not list what is there within {LISTED_S:g} s"
            raise TimeoutError(errno.ETIMEDOUT, reason, self._store.shown)
        if failed:
            number = failed[0].errno or errno.EIO
            raise OSError(number, describe_error(failed[0]), self._store.shown) from failed[0]
        return found

    def _lists(self, names: list[str]) -> list[tuple[str, Sent]]:
        def get(name: str) -> Sent | None:
            place = f"{name}/{LIST}" if name else LIST
            try:
                return read_list(self._store.read(place, LIST_BYTES_MAX))
            except FileNotFoundError:
                return None  # something else is there
            except (OSError, ValueError) as error:
                self._leave_out(place, describe_error(error))
                return None

        with ThreadPoolExecutor(READERS) as pool:
            found = zip(names, pool.map(get, names), strict=True)
            return [(name, sent) for name, sent in found if sent is not None]

    # --- the files ---

    def _get_all(self) -> None:
        jobs = self._chosen()
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(lambda job: self._get(*job), jobs))
        for host in self._hosts:
            names = {one.name for one in host.sent.files}
            for name in host.have.keys() - names:
                del host.have[name]
                os.unlink(os.path.join(host.folder, name))
            note_copy(host.folder, self._address, self._moment(host))
            if host.sent.over and host.sent.missing:
                self._leave_out(host.name, f"its last {host.sent.missing} files were not sent")

    def _chosen(self) -> list[tuple[_Host, SentFile]]:
        """What differs from what is here; CSVs the newest first, and as many as may be."""
        free = shutil.disk_usage(self.top).free // 2
        left, of_csvs = min(BYTES_MAX, free), 0
        jobs, skipped = [], 0
        files = [(host, one) for host in self._hosts for one in host.sent.files]
        files.sort(key=lambda job: (job[1].name.endswith(".csv"), -job[1].written_ns))
        seen: set[tuple[str, int | None]] = set()
        for host, one in files:
            is_csv = one.name.endswith(".csv")
            of_rank = (host.name, rank_of(one.name))
            is_older = is_csv and of_rank in seen
            seen |= {of_rank} if is_csv else set()
            if self._only_newest and is_older and of_csvs + one.size > LIVE_BYTES_MAX:
                continue
            if one.size > left:
                skipped += 1
                continue
            left -= one.size
            of_csvs += one.size if is_csv else 0
            if host.have.get(one.name) != one:
                jobs.append((host, one))
        if skipped:
            self._leave_out(shown(self._address), f"{skipped} files, for which there is no space")
        return jobs

    def _get(self, host: _Host, one: SentFile) -> None:
        target = os.path.join(host.folder, one.name)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            before = host.have.get(one.name)
            if before is not None and before.pieces == one.pieces != "" and before.size <= one.size:
                with open(target, "r+b", opener=open_without_waiting) as file:
                    self._fill(file, host, one, before.size // PIECE_BYTES)
            else:
                with atomic_write(target) as file:
                    self._fill(file, host, one)
            os.utime(target, ns=(one.written_ns, one.written_ns))
        except OSError as error:
            self._leave_out(f"{host.name}/{one.name}", describe_error(error))
            return
        host.have[one.name] = one

    def _fill(self, file: IO[bytes], host: _Host, one: SentFile, first: int = 0) -> None:
        """first: the piece with which it begins; those before are there. Of a row that came in part
        nothing is kept."""
        file.seek(first * PIECE_BYTES)
        for number, (name, size) in enumerate(itertools.islice(one.objects(), first, None), first):
            data = self._bytes(f"{host.name}/{name}" if host.name else name, one, size)
            if one.name.endswith(".csv") and number * PIECE_BYTES + size == one.size:
                data = data[: data.rfind(b"\n") + 1] or data
            file.write(data)
        file.truncate()

    def _bytes(self, place: str, one: SentFile, size: int) -> bytes:
        """OSError where it cannot be read, or is not what the list says."""
        if not size:
            return b""
        if JOURNAL.fullmatch(one.name):
            packed = self._store.read(place, JOURNAL_BYTES_MAX)
            return _unpacked(packed, min(size, JOURNAL_BYTES_MAX))
        data = self._store.read(place, size)
        if len(data) < size and GROWING.fullmatch(one.name):
            raise OSError(f"{size - len(data)} bytes of it are missing")
        return data

    def _moment(self, host: _Host) -> float:
        """Of what is here, by the host's clock; later where the host should have sent since, or the
        command has ended: what has said nothing more is not there any more."""
        late_s = self._late_s(host)
        if host.sent.over:
            late_s = max(late_s, EVERY_S)
        elif late_s <= FRESH_S:
            late_s = 0.0
        return host.sent.sent + late_s

    def _late_s(self, host: _Host) -> float:
        """For how long it has sent nothing. Its clock may be wrong: the place's own is asked, too,
        and this process's own where it has seen it send."""
        if host.changed_s is not None:
            return time.monotonic() - host.changed_s
        late_s = time.time() - host.sent.sent
        if 0.0 <= late_s <= FRESH_S:
            return late_s
        written_s = self._store.written_s(f"{host.name}/{LIST}" if host.name else LIST)
        return max(0.0, late_s if written_s is None else time.time() - written_s)

    def _leave_out(self, what: str, reason: str) -> None:
        self.problems.append(printable(f"left out {what}: {reason}"))


def _write_host_file(host: _Host) -> None:
    """With it readers take the folder."""
    ranks = sorted({rank for one in host.sent.files if (rank := rank_of(one.name)) is not None})
    about = host_file(host.sent.host, ranks, host.sent.sent, 0, EVERY_S, complete=host.sent.over)
    os.makedirs(host.folder, exist_ok=True)
    with atomic_write(os.path.join(host.folder, HOST_FILE)) as file:
        file.write(about)


def _newest_run(lists: list[tuple[str, Sent]]) -> tuple[list[tuple[str, Sent]], int]:
    """The hosts of the run that was sent last, and how many runs there are. Of those without an id
    a run is what was there at the same time."""
    with_id: dict[str, list[tuple[str, Sent]]] = {}
    runs: list[list[tuple[str, Sent]]] = []
    began_s = math.inf
    for name, sent in sorted(lists, key=lambda one: -one[1].sent):
        if sent.run_id:
            with_id.setdefault(sent.run_id, []).append((name, sent))
            continue
        if not runs or sent.sent < began_s:
            runs.append([])
            began_s = math.inf
        runs[-1].append((name, sent))
        began_s = min(began_s, sent.began)
    runs += with_id.values()
    newest = max(runs, key=lambda hosts: max(sent.sent for _, sent in hosts))
    return sorted(newest, key=lambda one: one[0]), len(runs)


def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="my_utils-fetched-")

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    call_at_end(remove)
    return folder


def _unpacked(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise OSError(f"it is damaged: {error}") from None
