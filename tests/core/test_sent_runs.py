"""What hosts send of a run to a place, and what is read there; the places are folders. Those of
object stores are in tests/run/test_to_an_address.py."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from my_utils.analysis.verdict.load import load_run
from my_utils.core.run_files.fetched import HOSTS_MAX, Fetched
from my_utils.core.run_files.ranks import find_ranks
from my_utils.core.run_files.sent_list import PIECE_BYTES, Sent, SentFile, read_list
from my_utils.core.run_files.stores import Store
from my_utils.run.sending import TURN_S, WAIT_MAX_S, Sending

from ..conftest import RunPython
from ..support.planted_runs import Run

pytest.importorskip("fsspec", reason="fsspec is not installed")

ROW = b"1750000000.000000,,0,0,iter,INSTANT,,\n"


class Host:
    """A host with a folder, that sends to a place. sent(): the list that is there."""

    def __init__(self, folder: Path, place: str, name: str, ranks: Sequence[int] = (0,)) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        report = folder.parent / f"{name}.report"
        lines = [
            "rank " + json.dumps({"rank": rank, "pid": rank + 1, "folder": str(folder), "own": 0})
            for rank in ranks
        ]
        report.write_text("\n".join(lines) + "\n")
        self.place = Path(place.removeprefix("file://"))
        self.name = name
        self.sending = Sending(place, report, name)

    def send(self, *, over: bool = False) -> None:
        self.sending.send(over=over)
        assert self.sending.error == ""

    def there(self) -> Path:
        (found,) = self.place.glob(f"*-{self.name}")
        return found

    def sent(self) -> Sent:
        return read_list((self.there() / "sent.json").read_bytes())

    def times(self) -> dict[str, int]:
        return {
            one.name: one.stat().st_mtime_ns for one in self.there().rglob("*") if one.is_file()
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "logs", str(tmp_path / "place"), "h0")


def write_run_file(folder: Path, run_id: str) -> None:
    about = {"version": 1, "script": "t.py", "command": ["t.py"], "started": 1.0, "run_id": run_id}
    (folder / "run.json").write_text(json.dumps(about))


def heartbeat(at_s: float) -> str:
    beat = {
        "sequence": 1, "version": 1, "rank": 0, "world_size": 1, "pid": 7, "attempt": 1,
        "host": "far", "time": at_s, "dropped": 0, "lanes": [], "end": 1,
    }  # fmt: skip
    return json.dumps(beat, separators=(",", ":"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["a folder", "file://"])
def test_the_answers_are_those_on_the_folders(
    form: str, tmp_path: Path, run_python: RunPython
) -> None:
    whole = Run(ranks=4, ranks_a_host=2).slower(1.5, "forward", rank=3).write(tmp_path / "whole")
    place = ("file://" if form == "file://" else "") + str(tmp_path / "place")
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        host = Host(folder, place, f"h{number}", (2 * number, 2 * number + 1))
        write_run_file(folder, "one")
        for rank in (2 * number, 2 * number + 1):
            os.rename(whole / f"profile_rank_{rank}.csv", folder / f"profile_rank_{rank}.csv")
        host.send(over=True)
    expected, found = (
        run_python("-m", "my_utils", "why", *map(str, named), "--json")
        for named in (folders, [place])
    )
    assert json.loads(found.stdout) == json.loads(expected.stdout)
    assert (found.returncode, found.stderr) == (expected.returncode, "")
    done = run_python("-m", "my_utils", "diff", str(tmp_path / "place"), place, "--json")
    difference = json.loads(done.stdout)
    assert (difference["ranks"], difference["b"]) == ([4, 4], [place])
    done = run_python("-m", "my_utils", "trace", place, "-o", str(tmp_path / "t.json"), "--json")
    assert json.loads(done.stdout)["slices"] > 0


def test_live_names_the_place(host: Host, run_python: RunPython) -> None:
    write_run_file(host.folder, "r")
    (host.folder / "rank_0.heartbeat.json").write_text(heartbeat(time.time()))
    host.send(over=True)
    done = run_python("-m", "my_utils", "live", str(host.place), "--once")
    assert done.stdout.startswith(f"{host.place}  "), done.stdout


def test_a_file_that_grows_is_sent_in_pieces_each_once(host: Host) -> None:
    csv = host.folder / "profile_rank_0.csv"
    data = ROW * (2 * PIECE_BYTES // len(ROW) + 10)
    csv.write_bytes(data)
    host.send()
    before = host.times()
    csv.write_bytes(data[:-1])  # written anew below, as it was
    csv.write_bytes(data + ROW)
    host.send()
    changed = {name for name, at in host.times().items() if before.get(name) != at}
    assert changed == {"profile_rank_0.csv.1.2", "sent.json"}
    (folder,) = Fetched(str(host.place)).folders
    assert Path(folder, "profile_rank_0.csv").read_bytes() == data + ROW


def test_a_full_csv_is_not_sent_again_under_its_other_name(host: Host) -> None:
    csv = host.folder / "profile_rank_0.csv"
    csv.write_bytes(ROW * 100)
    host.send()
    before = host.times()
    csv.rename(host.folder / "profile_rank_0.part0001.csv")
    csv.write_bytes(ROW * 3)
    host.send()
    changed = {name for name, at in host.times().items() if before.get(name) != at}
    assert changed == {"profile_rank_0.csv.2.0", "sent.json"}
    sizes = {one.name: one.size for one in host.sent().files}
    assert sizes == {
        "profile_rank_0.part0001.csv": 100 * len(ROW), "profile_rank_0.csv": 3 * len(ROW),
    }  # fmt: skip


def test_a_csv_that_becomes_full_while_it_is_sent_is_kept_there(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = host.folder / "profile_rank_0.csv"
    part = host.folder / "profile_rank_0.part0001.csv"
    csv.write_bytes(ROW * 100)
    written = Store.write

    def write(self: Store, name: str, data: bytes) -> None:
        written(self, name, data)
        if "/pieces/" in name and not part.exists():
            csv.rename(part)
            csv.write_bytes(ROW * 3)

    monkeypatch.setattr(Store, "write", write)
    host.send()
    assert {one.name: one.size for one in host.sent().files} == {part.name: 100 * len(ROW)}
    before = host.times()
    host.send()
    changed = {name for name, at in host.times().items() if before.get(name) != at}
    assert changed == {"profile_rank_0.csv.2.0", "sent.json"}
    (folder,) = Fetched(str(host.place)).folders
    for path in (csv, part):
        assert Path(folder, path.name).read_bytes() == path.read_bytes()


def test_all_of_a_csv_of_more_than_a_gigabyte_is_sent(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (1 << 30) + 100
    with (host.folder / "profile_rank_0.csv").open("wb") as file:
        file.write(ROW * 800_000)
        file.truncate(size)  # which takes no more space
    written, count = Store.write, 0

    def write(self: Store, name: str, data: bytes) -> None:
        nonlocal count
        if "/pieces/" in name:
            count += len(data)  # and none there
        else:
            written(self, name, data)

    monkeypatch.setattr(Store, "write", write)
    host.send(over=True)
    assert [one.size for one in host.sent().files] == [size]
    assert (count, host.sending.missing) == (size, 0)


def test_a_folder_that_cannot_be_listed_does_not_end_the_sending(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a file server that is down for a while."""
    csv = host.folder / "profile_rank_0.csv"
    csv.write_bytes(ROW)
    host.send()
    kept = host.folder.rename(host.folder.with_name("kept"))
    host.folder.symlink_to(host.folder)  # to itself
    host.sending.send(over=False)
    assert "symbolic links" in host.sending.error
    assert capsys.readouterr().err.count("takes no files") == 1
    host.folder.unlink()
    kept.rename(host.folder)
    csv.write_bytes(ROW * 2)
    host.send(over=True)
    assert host.sending.missing == 0
    assert [one.size for one in host.sent().files] == [2 * len(ROW)]


def test_what_the_run_has_removed_is_removed_there(host: Host) -> None:
    part = host.folder / "profile_rank_0.part0001.csv"
    part.write_bytes(ROW * 9)
    (host.folder / "profile_rank_0.csv").write_bytes(ROW)
    host.send()
    part.unlink()
    host.send()
    assert [one.name for one in host.sent().files] == ["profile_rank_0.csv"]
    assert len([name for name in host.times() if name.startswith("profile")]) == 1


def test_a_file_that_was_cut_and_goes_on_is_sent_anew(host: Host) -> None:
    csv = host.folder / "profile_rank_0.csv"
    csv.write_bytes(ROW * 5 + b"torn")
    host.send()
    csv.write_bytes(ROW * 9)
    host.send()
    (folder,) = Fetched(str(host.place)).folders
    assert Path(folder, "profile_rank_0.csv").read_bytes() == ROW * 9


def test_of_a_shared_folder_each_host_sends_its_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    hosts = [Host(folder, str(tmp_path / "place"), f"h{n}", (n,)) for n in range(2)]
    for rank in range(3):
        (folder / f"profile_rank_{rank}.csv").write_bytes(ROW)
    for one in hosts:
        one.send()
    assert [[file.name for file in one.sent().files] for one in hosts] == [
        ["profile_rank_0.csv"], ["profile_rank_1.csv"],
    ]  # fmt: skip


def test_of_a_row_that_came_in_part_nothing_is_read(host: Host) -> None:
    (host.folder / "profile_rank_0.csv").write_bytes(ROW * 2 + ROW[:9])
    host.send()
    (folder,) = Fetched(str(host.place)).folders
    assert Path(folder, "profile_rank_0.csv").read_bytes() == ROW * 2


def test_a_place_that_was_down_gets_what_it_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.write_text("no folder")
    host = Host(tmp_path / "logs", str(place), "h0")
    (host.folder / "profile_rank_0.csv").write_bytes(ROW)
    for _ in range(2):
        host.sending.send(over=False)
        assert host.sending.missing == 1 and host.sending.error
    assert capsys.readouterr().err.count("takes no files") == 1
    place.unlink()
    host.send(over=True)
    assert (host.sending.missing, host.sending.result()) == (0, f"my_utils run: sent to {place}")
    assert [one.size for one in host.sent().files] == [len(ROW)]


def test_a_place_that_was_emptied_gets_all_again(host: Host) -> None:
    write_run_file(host.folder, "r")
    csv = host.folder / "profile_rank_0.csv"
    csv.write_bytes(ROW * (PIECE_BYTES // len(ROW) + 1000))
    host.send()
    shutil.rmtree(host.place)
    host.send()
    shutil.rmtree(host.place)
    with csv.open("ab") as file:
        file.write(ROW)
    host.send()
    (found,) = Fetched(str(host.place)).folders
    assert Path(found, "profile_rank_0.csv").read_bytes() == csv.read_bytes()
    assert Path(found, "run.json").read_bytes() == (host.folder / "run.json").read_bytes()


@pytest.mark.parametrize(
    ("sent_before_s", "state"),
    [(50.0, "running"), (WAIT_MAX_S + TURN_S, "running"), (3600.0, "silent")],
)
def test_how_old_a_heartbeat_is_does_not_count_the_time_between_two_sendings(
    host: Host, sent_before_s: float, state: str
) -> None:
    at_s = time.time() - sent_before_s
    path = host.folder / "rank_0.heartbeat.json"
    path.write_text(heartbeat(at_s - 1))
    os.utime(path, (at_s - 1, at_s - 1))
    (host.folder / "profile_rank_0.csv").write_bytes(ROW)
    host.send()
    sent = host.sent()
    sent.sent = at_s
    there = host.there() / "sent.json"
    there.write_bytes(msgspec.json.encode(sent))
    os.utime(there, (at_s, at_s))
    (rank,) = find_ranks(Fetched(str(host.place)).folders).ranks
    assert rank.state == state
    if state == "running":
        assert rank.beat_age_s == pytest.approx(1.0, abs=0.1)
    else:
        assert (rank.beat_age_s or 0.0) > 3000.0


def test_the_newest_run_at_a_place_is_read(tmp_path: Path) -> None:
    for name in ("old", "new"):
        host = Host(tmp_path / name, str(tmp_path / "place"), name)
        write_run_file(host.folder, name)
        host.send(over=True)
    run = Fetched(str(tmp_path / "place"))
    (folder,) = run.folders
    assert json.loads(Path(folder, "run.json").read_text())["run_id"] == "new"
    assert run.how == f"the newest of 2 runs at {tmp_path / 'place'} is read"


def test_hosts_without_a_run_id_are_one_run_if_they_ran_at_the_same_time(tmp_path: Path) -> None:
    hosts = [Host(tmp_path / f"h{n}", str(tmp_path / "place"), f"h{n}", (n,)) for n in range(3)]
    for rank, host in enumerate(hosts):
        (host.folder / f"profile_rank_{rank}.csv").write_bytes(ROW)
        host.send(over=True)
    earlier = hosts[0].sent()
    earlier.began, earlier.sent = earlier.began - 900, earlier.sent - 800
    (hosts[0].there() / "sent.json").write_bytes(msgspec.json.encode(earlier))
    run = Fetched(str(tmp_path / "place"))
    found = [name for folder in run.folders for name in os.listdir(folder)]
    assert sorted(found) == ["profile_rank_1.csv", "profile_rank_2.csv"]


def test_after_the_end_no_rank_counts_as_running(host: Host) -> None:
    (host.folder / "rank_0.heartbeat.json").write_text(heartbeat(time.time()))
    host.send(over=True)
    (rank,) = find_ranks(Fetched(str(host.place)).folders).ranks
    assert rank.state == "silent"


def test_a_running_one_is_refreshed(host: Host) -> None:
    csv = host.folder / "profile_rank_0.csv"
    csv.write_bytes(ROW)
    host.send()
    run = Fetched(str(host.place), only_newest=True)
    csv.write_bytes(ROW * 4)
    write_run_file(host.folder, "one")
    host.send()
    run.refresh()
    (folder,) = run.folders
    assert Path(folder, "profile_rank_0.csv").read_bytes() == ROW * 4
    assert Path(folder, "run.json").exists()


@pytest.mark.parametrize("run_id", ["one", ""])
def test_a_host_that_joins_later_is_read_from_then_on(run_id: str, tmp_path: Path) -> None:
    whole = Run(ranks=3, ranks_a_host=1).write(tmp_path / "whole")
    place = tmp_path / "place"
    hosts = [Host(tmp_path / f"h{rank}", str(place), f"h{rank}", (rank,)) for rank in range(3)]

    def send(rank: int, run_id: str) -> None:
        name = f"profile_rank_{rank}.csv"
        os.rename(whole / name, hosts[rank].folder / name)
        (hosts[rank].folder / f"rank_{rank}.heartbeat.json").write_text(heartbeat(time.time()))
        if run_id:
            write_run_file(hosts[rank].folder, run_id)
        hosts[rank].send()

    send(0, run_id)
    run = Fetched(str(place), only_newest=True)
    assert load_run(run.folders).ranks.tolist() == [0]
    send(1, run_id)
    send(2, "another")
    for _ in range(2):
        run.refresh()
        assert [one.rank for one in find_ranks(run.folders).ranks] == [0, 1]
    assert load_run(run.folders).ranks.tolist() == [0, 1]


# --- places that are not to be trusted ---


def one_file(**about: Any) -> bytes:
    file = {"name": "run.json", "size": 1, "written_ns": 0, **about}
    return msgspec.json.encode(
        {"version": 1, "host": "h", "run_id": "r", "began": 0.0, "sent": 0.0, "over": True,
         "missing": 0, "files": [file]}
    )  # fmt: skip


@pytest.mark.parametrize(
    "about",
    [
        {"name": "../run.json"},
        {"name": "/etc/passwd"},
        {"name": "flight_recorder/../../dump_1"},
        {"name": "flight_recorder/.."},
        {"name": "replicas/rank_0./../x"},
        {"name": "profile_rank_0.csv\n", "pieces": "a"},
        {"name": "profile_rank_0.csv", "pieces": "../a"},
        {"name": "profile_rank_0.csv"},
        {"name": "run.json", "pieces": "a"},
        {"size": -1},
        {"size": 1 << 41},
        {"written_ns": 1 << 70},
    ],
)
def test_a_list_that_leads_elsewhere_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_list(one_file(**about))


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_list(data)


def test_a_host_with_a_bad_list_is_left_out_and_said(host: Host) -> None:
    (host.folder / "profile_rank_0.csv").write_bytes(ROW)
    host.send()
    (host.place / "bad").mkdir()
    (host.place / "bad" / "sent.json").write_bytes(one_file(name="../run.json"))
    run = Fetched(str(host.place))
    assert len(run.folders) == 1
    assert run.problems == ["left out bad/sent.json: no file of a run: '../run.json'"]


def test_files_that_are_not_as_the_list_says_are_left_out(host: Host) -> None:
    (host.folder / "profile_rank_0.csv").write_bytes(ROW * 2)
    host.send()
    piece = host.there() / "pieces" / "profile_rank_0.csv.1.0"
    piece.write_bytes(ROW)
    run = Fetched(str(host.place))
    assert os.listdir(run.folders[0]) == []
    assert len(run.problems) == 1 and "bytes of it are missing" in run.problems[0]
    piece.write_bytes(ROW * 2_000_000)  # of more nothing is taken
    (folder,) = Fetched(str(host.place)).folders
    assert Path(folder, "profile_rank_0.csv").stat().st_size == 2 * len(ROW)


def test_a_place_with_a_million_names_is_refused() -> None:
    from fsspec import AbstractFileSystem, register_implementation

    class Crowded(AbstractFileSystem):  # type: ignore[misc]
        protocol = "crowded"

        def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
            names = [f"{path}/../n{number}" for number in range(1_000_000)]
            return [{"name": name} for name in names] if detail else names

    register_implementation("crowded", Crowded)
    with pytest.raises(OSError, match=f"more than {HOSTS_MAX} names"):
        Fetched("crowded://here/run")


# --- wrong addresses ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "memory://run"], "not memory://"),
        (["--to", "nowhere://run"], "not nowhere://"),
        (["--to", ""], "must be an address"),
        (["--to", "place", "--repeat", "2", "--against", "b.py"], "not with --against"),
    ],
)
def test_run_refuses_at_once(words: list[str], said: str, run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", "run", *words, "train.py")
    assert done.returncode == 2 and said in done.stderr


def test_an_address_at_which_nothing_is_and_a_missing_package(
    tmp_path: Path, run_python: RunPython
) -> None:
    done = run_python("-m", "my_utils", "why", f"file://{tmp_path}")
    assert done.returncode == 2
    assert "has sent nothing there" in done.stderr
    done = run_python("-m", "my_utils", "why", "gs://bucket/run")
    assert done.returncode == 2 and "pip install gcsfs" in done.stderr


def test_sent_file_names_its_objects() -> None:
    one = SentFile("rank_0.100.windows", 2 * PIECE_BYTES + 1, 0, "p")
    assert list(one.objects()) == [
        ("pieces/p.0", PIECE_BYTES), ("pieces/p.1", PIECE_BYTES), ("pieces/p.2", 1),
    ]  # fmt: skip
