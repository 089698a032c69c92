"""What one host sends is what is in the other's folder, within bounds, and nowhere else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from my_utils.core.run_files.hosts import HOSTS_FOLDER, host_folders, hosts_text
from my_utils.core.run_files.ranks import find_ranks
from my_utils.run.hosts import receiving, sending
from my_utils.run.hosts.receiving import HostFolder
from my_utils.run.hosts.sending import Sending
from my_utils.run.hosts.wire import Refused

pytestmark = pytest.mark.no_torch

ID = "0123456789abcdef"
HEADER = (
    b"timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
)
SAID = b'1.0,,node,0,my_utils.process,INSTANT,,"pid=1,rank=3"\n'
ROOM = 1 << 20
PAUSE_S = 2.0  # between two turns of the sender


def row(step: int) -> bytes:
    return b"%d.0,,node,%d,forward,END,1.0,\n" % (step, step)


def heartbeat(**more: object) -> bytes:
    about = {
        "version": 1, "rank": 3, "world_size": 4, "pid": 1, "attempt": 1, "dropped": 0,
        "time": time.time(), "lanes": [], "sequence": 1, "end": 1, **more,
    }  # fmt: skip
    return json.dumps(about).encode()


class Pair:
    """The folder of a sender, and that of a receiver."""

    def __init__(self, folder: Path) -> None:
        self.here, self.run = folder / "sender", folder / "run"
        self.here.mkdir()
        self.run.mkdir()
        self.sending = Sending(self.here)
        self.received = HostFolder(self.run, "node-b", ID, 0, ROOM)
        (self.there,) = (self.run / HOSTS_FOLDER).iterdir()

    def turn(self, ranks: tuple[int, ...] = (3,), rows_max: int = ROOM) -> int:
        """Sends what is new; returns how many bytes that were."""
        count = 0
        for piece in self.sending.pieces(ranks, rows_max):
            if piece.data is None:
                self.received.drop(piece.name)
                continue
            count += len(piece.data)
            if not self.received.put(
                piece.name, piece.at, piece.data, fresh=piece.fresh, last=piece.last
            ):
                self.sending.refuse()
        return count

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.there.rglob("*") if path.is_file())
        return {str(path.relative_to(self.there)): path.read_bytes() for path in found}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_files_come_as_they_are(pair: Pair) -> None:
    sent = {
        "profile_rank_3.csv": HEADER + SAID + row(0),
        "rank_3.100.windows": bytes(range(256)) * 3000,
        "run.json": b"{}",
        "flight_recorder/dump_3": b"\x80dump",
        "replicas/rank_3.1.sums": b"sums",
    }
    kept_back = {
        "profile_rank_4.csv": b"of another rank",
        "notes.txt": b"of the user",
        "rank_3.1.2.journal": b"j",
    }
    for name, data in {**sent, **kept_back}.items():
        (pair.here / name).parent.mkdir(exist_ok=True)
        (pair.here / name).write_bytes(data)
    pair.turn()
    assert pair.files() == sent
    assert pair.turn() == 0


def test_only_what_was_added_is_sent_and_whole_rows_of_that(pair: Pair) -> None:
    csv = pair.here / "profile_rank_3.csv"
    csv.write_bytes(HEADER + b"".join(map(row, range(1000))) + b"1.0,,no")
    assert pair.turn() == len(HEADER) + sum(len(row(step)) for step in range(1000))
    with csv.open("ab") as file:
        file.write(b"de,5\n" + row(1000))
    assert pair.turn() == len(b"1.0,,node,5\n" + row(1000))
    assert pair.files()["profile_rank_3.csv"] == csv.read_bytes()


def test_a_file_that_another_replaces_is_sent_anew(pair: Pair) -> None:
    """As a rotation does it, and the windows of a full file."""
    windows = pair.here / "rank_3.100.windows"
    windows.write_bytes(b"a" * 1000)
    pair.turn()
    windows.rename(pair.here / "rank_3.100.old.windows")
    windows.write_bytes(b"b" * 2000)
    pair.turn()
    assert pair.files() == {
        "rank_3.100.windows": b"b" * 2000,
        "rank_3.100.old.windows": b"a" * 1000,
    }


def test_of_too_many_rows_the_newest_are_kept(pair: Pair) -> None:
    csv = pair.here / "profile_rank_3.csv"
    rows = b""
    with csv.open("wb") as file:
        file.write(HEADER + SAID)
        for step in range(2000):
            file.write(row(step))
            rows += row(step)
            if step % 100 == 99:
                file.flush()
                pair.turn(rows_max=20_000)
                kept = pair.files()["profile_rank_3.csv"]
                assert len(kept) < 20_000 + 2 * len(HEADER + SAID)
                begin = HEADER + SAID
                assert kept.startswith(begin) and rows.endswith(kept.removeprefix(begin))
    assert len(pair.files()["profile_rank_3.csv"]) >= 10_000
    assert pair.sending.left_out == 0


def test_of_parts_those_are_kept_that_follow_without_a_gap(pair: Pair) -> None:
    for number in (1, 2, 3):
        (pair.here / f"profile_rank_3.part000{number}.csv").write_bytes(row(number) * 100)
    csv = pair.here / "profile_rank_3.csv"
    csv.write_bytes(row(4) * 10)
    size = len(row(1)) * 100
    pair.turn(rows_max=3 * size)
    assert sorted(pair.files()) == [
        "profile_rank_3.csv", "profile_rank_3.part0002.csv", "profile_rank_3.part0003.csv",
    ]  # fmt: skip
    csv.write_bytes(row(4) * 150)
    pair.turn(rows_max=3 * size)
    assert sorted(pair.files()) == ["profile_rank_3.csv", "profile_rank_3.part0003.csv"]
    for part in pair.here.glob("*.part*.csv"):
        part.unlink()  # as `keep_csv_bytes` does, the oldest first
    pair.turn(rows_max=3 * size)
    assert sorted(pair.files()) == ["profile_rank_3.csv"]


def test_of_a_part_that_has_become_full_the_newest_rows_are_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are never fewer than half as many as may be, also just after a rotation."""
    monkeypatch.setattr(sending, "HEAD", 500)
    csv = pair.here / "profile_rank_3.csv"
    rows = b""
    for step in range(2400):
        if step % 800 == 0:
            if step:
                csv.rename(pair.here / f"profile_rank_3.part000{step // 800}.csv")
            csv.write_bytes(HEADER)
        rows += row(step)
        with csv.open("ab") as file:
            file.write(row(step))
        if step % 50 == 0:
            pair.turn(rows_max=15_000)
            kept = b"".join(data for _, data in sorted(pair.files().items(), key=age_of_rows))
            kept = kept.replace(HEADER, b"")
            assert rows.endswith(kept)
            assert min(len(rows), 7_000) <= len(kept) <= 15_000


def age_of_rows(item: tuple[str, bytes]) -> tuple[bool, str]:
    """The order of files by it, the oldest first."""
    return ".part" not in item[0], item[0]


def test_a_dump_that_is_too_large_is_counted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WHOLE_MAX", 1000)
    (pair.here / "flight_recorder").mkdir()
    dump = pair.here / "flight_recorder" / "dump_3"
    dump.write_bytes(b"d" * 2000)
    assert (pair.turn(), pair.sending.left_out, pair.files()) == (0, 2000, {})
    dump.write_bytes(b"d" * 900)
    assert (pair.turn(), pair.sending.left_out) == (900, 0)


def test_what_has_no_space_is_counted_and_the_rest_comes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "FREE_LEAST", 1 << 62)
    (pair.here / "rank_3.100.windows").write_bytes(b"w" * 5000)
    beat = heartbeat(closed=True)
    (pair.here / "rank_3.heartbeat.json").write_bytes(beat)
    pair.turn()
    assert pair.files() == {"rank_3.heartbeat.json": beat}  # else it had ended in the middle
    assert pair.sending.left_out == 5000
    pair.received.note([3], pair.sending.left_out, PAUSE_S, complete=True)
    text = hosts_text([pair.there])
    assert text.startswith("1 of 2 hosts; node-b until ")
    assert text.endswith(", without 4.88 KiB")
    monkeypatch.undo()
    pair.turn()
    assert (len(pair.files()["rank_3.100.windows"]), pair.sending.left_out) == (5000, 0)
    pair.received.note([3], 0, PAUSE_S, complete=True)
    assert hosts_text([pair.there]) == ""


def test_a_host_that_is_gone_is_named_with_its_time(pair: Pair) -> None:
    assert host_folders(pair.run) == []  # it has not sent all that there was
    pair.received.note([3], 0, PAUSE_S, complete=False)
    assert host_folders(pair.run) == [str(pair.there)]
    until = json.loads((pair.there / "host.json").read_text())["until"]
    assert hosts_text([pair.run, pair.there], until + 60) == ""
    assert "1 of 2 hosts; node-b until " in hosts_text([pair.run, pair.there], until + 3600)


@pytest.mark.parametrize("how", ["it is lost", "its command has ended"])
def test_a_rank_of_a_host_that_is_over_does_not_run(pair: Pair, how: str) -> None:
    """However new its last sign of life is."""
    (pair.here / "rank_3.heartbeat.json").write_bytes(heartbeat())
    pair.turn()
    pair.received.note([3], 0, PAUSE_S, complete=False)
    assert [one.state for one in find_ranks(str(pair.run)).ranks] == ["running"]
    if how == "it is lost":
        (pair.run / "run.json").write_text('{"ended": 1.0}')
        host = json.loads((pair.there / "host.json").read_text())
        (pair.there / "host.json").write_text(json.dumps({**host, "until": time.time() - 6.0}))
    else:
        pair.received.note([3], 0, PAUSE_S, complete=True)
    assert [one.state for one in find_ranks(str(pair.run)).ranks] == ["silent"]


@pytest.mark.parametrize(
    ("sent_before_s", "said_before_s", "state"),
    [
        (40.0, 1.0, "running"),
        (40.0, 30.0, "silent"),  # it had said nothing when its host sent last
        (110.0, 1.0, "silent"),  # its host is late, too
    ],
)
def test_a_rank_does_not_count_as_silent_between_two_sendings_of_its_host(
    pair: Pair, sent_before_s: float, said_before_s: float, state: str
) -> None:
    """With a thousand hosts there are 50 s between them."""
    now_s = time.time()
    said_s = now_s - sent_before_s - said_before_s
    (pair.here / "rank_3.heartbeat.json").write_bytes(heartbeat(time=said_s))
    pair.turn()
    os.utime(pair.there / "rank_3.heartbeat.json", (said_s, said_s))
    pair.received.note([3], 0, 50.0, complete=False)
    host = json.loads((pair.there / "host.json").read_text())
    (pair.there / "host.json").write_text(json.dumps({**host, "until": now_s - sent_before_s}))
    (rank,) = find_ranks(str(pair.run)).ranks
    assert rank.state == state
    if state == "running":
        assert rank.beat_age_s == pytest.approx(said_before_s, abs=0.1)


def test_a_heartbeat_that_is_being_written_over_waits(pair: Pair) -> None:
    beat = pair.here / "rank_3.heartbeat.json"
    beat.write_bytes(heartbeat(sequence=7, end=6))
    assert pair.turn() == 0
    beat.write_bytes(heartbeat(sequence=7, end=7))
    assert pair.turn() > 0 and json.loads(pair.files()[beat.name])["end"] == 7


@pytest.mark.parametrize(
    "name",
    [
        "../profile_rank_0.csv", "/tmp/profile_rank_0.csv", "hosts/x/run.json", "host.json", "",
        "replicas/../../../run.json", "profile_rank_0.csv\n", "rank_0.1.2.journal", "run.json.new",
        "flight_recorder/dump_1/run.json", "x" * 255, "profile_rank_0\0.csv",
    ],
)  # fmt: skip
def test_other_names_are_refused(pair: Pair, name: str) -> None:
    before = sorted(pair.run.rglob("*"))
    with pytest.raises(Refused):
        pair.received.put(name, 0, b"x", fresh=True, last=True)
    with pytest.raises(Refused):
        pair.received.drop(name)
    assert sorted(pair.run.rglob("*")) == before


@pytest.mark.parametrize("host", ["../../etc", "/", "a/b", "..", "", "\0", "hôst\n", "x" * 255])
def test_a_host_of_any_name_has_one_folder_below_that_of_the_run(tmp_path: Path, host: str) -> None:
    HostFolder(tmp_path, host, ID, 0, ROOM)
    (folder,) = (tmp_path / HOSTS_FOLDER).iterdir()
    assert sorted(tmp_path.rglob("*")) == [tmp_path / HOSTS_FOLDER, folder]


@pytest.mark.parametrize("id", ["", "../..", "0" * 15, "0" * 17, "G" * 16])
def test_an_id_that_no_sender_has_is_refused(tmp_path: Path, id: str) -> None:
    with pytest.raises(Refused):
        HostFolder(tmp_path, "node", id, 0, ROOM)
    assert not list(tmp_path.iterdir())


def test_links_lead_nowhere(pair: Pair, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("mine")
    (pair.there / "rank_3.100.windows").symlink_to(victim)
    (pair.there / "replicas").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        pair.received.put("rank_3.100.windows", 0, b"x", fresh=False, last=False)
    with pytest.raises(OSError):
        pair.received.put("replicas/rank_3.1.sums", 0, b"x", fresh=True, last=True)
    assert victim.read_text() == "mine" and os.listdir(outside) == ["victim"]
    other = tmp_path / "other"
    other.mkdir()
    (other / HOSTS_FOLDER).symlink_to(outside)
    with pytest.raises(OSError):
        HostFolder(other, "node", ID, 0, ROOM)
    assert os.listdir(outside) == ["victim"]


def test_no_sender_exceeds_its_bound(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    most = ROOM + receiving.OTHERS_MAX
    piece = bytes(1 << 20)
    monkeypatch.setattr(receiving, "_write", lambda *words, **more: None)
    at = 0
    while pair.received.put("rank_3.100.windows", at, piece, fresh=False, last=False):
        at += len(piece)
    assert at == most
    assert not pair.received.put("profile_rank_3.csv", 0, b"x", fresh=True, last=False)


def test_a_piece_after_a_gap_is_refused_and_one_that_comes_again_is_not(pair: Pair) -> None:
    put = pair.received.put
    assert put("rank_3.100.windows", 0, b"abc", fresh=False, last=False)
    assert put("rank_3.100.windows", 0, b"abcd", fresh=False, last=False)
    assert pair.files() == {"rank_3.100.windows": b"abcd"}
    with pytest.raises(Refused):
        put("rank_3.100.windows", 1 << 40, b"x", fresh=False, last=False)


def test_readers_see_no_file_that_is_half_sent(pair: Pair) -> None:
    put = pair.received.put
    assert put("run.json", 0, b"old", fresh=True, last=True)
    assert put("run.json", 0, b"ne", fresh=True, last=False)
    assert (pair.there / "run.json").read_bytes() == b"old"
    assert put("run.json", 2, b"w", fresh=True, last=True)
    assert pair.files() == {"run.json": b"new"}
