"""A log directory that other users can write to: each line of SECURITY.md, with a second user."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.cli.report import main as report
from my_utils.cli.why import main as why
from my_utils.profilers import capture
from my_utils.profilers.capture.on_demand.control_file import CONTROL_NAME, Request, add_request
from my_utils.trace.csv2trace import csv_to_trace

from ..conftest import ROOT, RunPython
from ..support.other_users import (
    BECOME,
    OTHER,
    THIRD,
    as_root,
    closed_above,
    done_by,
    folder_for_all,
)
from .programs import finished, run, steps_of

pytestmark = [as_root, pytest.mark.c_code]

SETUP = "logger.setup(sys.argv[1], rank=0, world_size=1, console=False)\n"
ENDS = SETUP + "stages(50)\n"
KILLED = "logger.setup(sys.argv[1], rank=0, world_size=1, console=False, io='inline')\n" + (
    "stages({count})\nos.kill(os.getpid(), signal.SIGKILL)\n"
)
TEST_OF = {
    "journals": "test_a_journal_of_another_user_stays",
    "pointers": "test_a_pointer_is_judged_by_its_journal",
    "profile CSV": "test_rows_go_to_no_file_of_others",
    "text log": "test_lines_go_to_no_file_of_others",
    "samples": "test_samples",  # in the tests of the performance tracker
    "heartbeat": "test_a_heartbeat_is_a_new_file",
    "requests for captures": "test_only_root_and_the_jobs_own_user_ask_for_captures",
    "folders in `/tmp` and `/dev/shm`": "test_temporary_folders",  # a file of tests
    "compiled GPU kernels": "test_gpu_launch",  # a test in C
    "modes": "test_modes_whatever_the_umask",
    "FIFOs": "test_no_fifo_holds_a_setup_up",
    "reading": "test_another_users_directory_is_read",
    "hostile files": "test_hostile",  # a file of tests
}


@pytest.fixture
def shared() -> Iterator[Path]:
    with folder_for_all() as folder:
        yield folder


def journal_of_a_killed(run_python: RunPython, folder: Path, count: int) -> Path:
    done = run(run_python, KILLED.format(count=count), str(folder))
    assert done.returncode == -9, done.stderr
    (journal,) = folder.glob("*.journal")
    return journal


def said(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("rank_0*.log")))


def test_each_line_has_a_test() -> None:
    lines = re.findall(r"^- \*\*(.+?)\*\*:", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert lines == list(TEST_OF)
    elsewhere = {"test_samples", "test_hostile", "test_temporary_folders", "test_gpu_launch"}
    assert all(name in globals() for name in TEST_OF.values() if name not in elsewhere)


def test_a_journal_of_another_user_stays(
    run_python: RunPython, shared: Path, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    planted = shared / journal_of_a_killed(run_python, elsewhere, 5).name
    finished(run_python, SETUP + "stages(300)\n", str(shared))
    before = steps_of(shared / "profile_rank_0.csv")
    shutil.copy(elsewhere / planted.name, planted)
    os.chown(planted, OTHER, OTHER)
    done = finished(run_python, ENDS, str(shared))
    assert steps_of(shared / "profile_rank_0.csv") == before + list(range(50))
    assert planted.stat().st_uid == OTHER
    assert said(shared).count("--recover") == 1, done.stderr


def test_a_link_to_a_journal_is_not_taken_over(
    run_python: RunPython, shared: Path, tmp_path: Path
) -> None:
    """Else one that another directory keeps would be in two CSVs."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    journal = journal_of_a_killed(run_python, elsewhere, 5)
    for link in (Path.symlink_to, Path.hardlink_to):
        link(shared / journal.name, journal)
        finished(run_python, ENDS, str(shared))
        assert steps_of(shared / "profile_rank_0.csv") == list(range(50))
        assert journal.exists()
        for path in shared.iterdir():
            path.unlink()


def test_a_pointer_is_judged_by_its_journal(
    run_python: RunPython, shared: Path, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    journal = journal_of_a_killed(run_python, elsewhere, 5)
    pointer = shared / f"{journal.name}-ref"

    def planted(journal_of: int) -> list[int]:
        for path in shared.iterdir():
            path.unlink()
        os.chown(journal, journal_of, journal_of)
        done_by(OTHER, lambda: pointer.write_text(f"{journal}\n"))
        finished(run_python, ENDS, str(shared))
        return steps_of(shared / "profile_rank_0.csv")

    assert planted(THIRD) == list(range(50))
    assert journal.exists()
    assert planted(0) == [0, 1, 2, 3, 4, *range(50)]
    assert not journal.exists()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "another user's"])
def test_rows_go_to_no_file_of_others(
    run_python: RunPython, shared: Path, tmp_path: Path, kind: str
) -> None:
    victim, csv = plant(kind, tmp_path, shared / "profile_rank_0.csv")
    finished(run_python, ENDS, str(shared))
    assert victim.read_bytes() == b""
    assert csv.stat(follow_symlinks=False).st_size in (0, len(str(victim)))
    assert steps_of(shared / "profile_rank_0.w1.csv") == list(range(50))
    assert "is not a file of this user" in said(shared)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "another user's"])
def test_lines_go_to_no_file_of_others(
    run_python: RunPython, shared: Path, tmp_path: Path, kind: str
) -> None:
    victim, _ = plant(kind, tmp_path, shared / "rank_0.log")
    done = finished(run_python, ENDS + "logger.get_logger().warning('a line')\n", str(shared))
    assert victim.read_bytes() == b""
    assert done.stderr.count("there is no text log") == 1
    assert steps_of(shared / "profile_rank_0.csv") == list(range(50))


def plant(kind: str, tmp_path: Path, place: Path) -> tuple[Path, Path]:
    """The file that would be written to, and where it was put."""
    victim = tmp_path / "victim"
    victim.touch()
    if kind == "symlink":
        done_by(OTHER, lambda: place.symlink_to(victim))
    elif kind == "hard link":
        place.hardlink_to(victim)
    else:
        done_by(OTHER, place.touch)
        os.chmod(place, 0o666)
        victim = place
    return victim, place


def test_a_heartbeat_is_a_new_file(run_python: RunPython, shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    place = shared / "rank_0.heartbeat.json.tmp"
    done_by(OTHER, lambda: place.symlink_to(victim))
    finished(run_python, ENDS, str(shared))
    assert victim.read_text() == "dear"
    heartbeat = shared / "rank_0.heartbeat.json"
    assert json.loads(heartbeat.read_bytes())["closed"] is True
    assert not heartbeat.is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        "profile_rank_0.csv",
        "rank_0.log",
        "rank_0.heartbeat.json",
        "rank_0.heartbeat.json.tmp",
        "rank_0.7.7.journal",
        "rank_0.7.7.journal-ref",
        CONTROL_NAME,
    ],
)
def test_no_fifo_holds_a_setup_up(run_python: RunPython, shared: Path, name: str) -> None:
    os.mkfifo(shared / name)
    finished(run_python, ENDS, str(shared))
    (csv,) = (path for path in shared.glob("profile_*.csv") if path.is_file())
    assert steps_of(csv) == list(range(50))


MASKED = "os.umask(0)\n" + ENDS


def test_modes_whatever_the_umask(run_python: RunPython, shared: Path) -> None:
    finished(run_python, MASKED, str(shared))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in shared.iterdir()}
    assert modes == {
        "profile_rank_0.csv": 0o644,
        "rank_0.heartbeat.json": 0o644,
        "rank_0.log": 0o666,
    }
    before = os.umask(0)
    try:
        capture.request_capture(shared, backend="none", first_step="now")
    finally:
        os.umask(before)
    assert stat.S_IMODE((shared / CONTROL_NAME).stat().st_mode) == 0o600


def test_only_root_and_the_jobs_own_user_ask_for_captures(shared: Path) -> None:
    """What a job does with a control file of others stands in the tests of captures."""
    planted = {"my_utils": "control", "version": 1, "requests": [{"id": "evil"}]}
    path = shared / CONTROL_NAME

    def ids() -> list[str]:
        return [request["id"] for request in json.loads(path.read_bytes())["requests"]]

    done_by(OTHER, lambda: path.write_text(json.dumps(planted)))
    add_request(shared, Request(id="good"))
    assert ids() == ["good"]
    path.write_text(json.dumps(planted))
    path.chmod(0o666)
    add_request(shared, Request(id="good"))
    assert ids() == ["good"]
    add_request(shared, Request(id="better"))
    assert ids() == ["good", "better"]
    os.chown(shared, OTHER, OTHER)
    add_request(shared, Request(id="best"))
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (OTHER, 0o600)


READS = (
    BECOME
    + """
from my_utils.cli.command import main
def call(*words):
    try:
        status = main(list(words))
    except SystemExit as end:
        status = end.code
    return status or 0
def reads(run, out):
    return [
        call("live", run, "--once"),
        call("why", run),
        call("report", run, "-o", out + "/report.html"),
        call("trace", run, "-o", out + "/trace.json", "--recover"),
    ]
own, other, out = sys.argv[1:]
first = reads(own, own)
become(65534)
print("statuses", first, reads(other, out))
"""
)


def test_another_users_directory_is_read(
    run_python: RunPython, shared: Path, tmp_path: Path
) -> None:
    if closed_above(ROOT / "my_utils"):
        pytest.skip("the page's templates are read from the checkout, which others cannot reach")
    journal_of_a_killed(run_python, shared, 60)
    shutil.copytree(shared, own := tmp_path / "own")
    (out := shared.parent / "out").mkdir()
    out.chmod(0o777)
    shared.chmod(0o755)
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    done = finished(run_python, READS, str(own), str(shared), str(out))
    (first, second) = re.findall(r"\[[\d, ]+\]", done.stdout.splitlines()[-1])
    assert first == second, done.stderr
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == before
    assert (out / "trace.json").stat().st_uid == 65534
    assert '"stage"' in (out / "trace.json").read_text()


def test_a_file_that_is_closed_to_the_reader_does_not_take_the_others_with_it(
    run_python: RunPython, shared: Path
) -> None:
    """Of a rank that another user started."""
    for rank in (0, 1):
        setup = SETUP.replace("rank=0, world_size=1", f"rank={rank}, world_size=2")
        finished(run_python, setup + "stages(3)", str(shared))
    closed, trace = shared / "profile_rank_1.csv", shared / "trace.json"
    closed.chmod(0o600)

    def converts() -> None:
        summary = csv_to_trace([shared], trace)
        assert summary.errors == [f"{closed}: Permission denied"]

    csv_to_trace([shared], shared / "all.json")
    done_by(OTHER, converts)
    assert "stage" in trace.read_text()


def test_a_folder_that_is_closed_to_the_reader_is_said(run_python: RunPython, shared: Path) -> None:
    logs = shared / "logs"
    finished(run_python, SETUP + "stages(3)", str(logs))
    logs.chmod(0o711)

    def judges() -> None:
        assert verdict_of(str(logs)).reason == f"{logs}: Permission denied"

    verdict_of(str(logs))
    done_by(OTHER, judges)


def test_a_closed_folder_does_not_take_the_one_beside_it_along(
    run_python: RunPython, shared: Path
) -> None:
    """Of a node whose ranks another user started."""
    logs, closed, out = shared / "logs", shared / "closed", shared / "out"
    finished(run_python, SETUP + "stages(40)", str(logs))
    shutil.copytree(logs, closed)
    closed.chmod(0o700)
    out.mkdir(mode=0o777)
    out.chmod(0o777)

    def reads() -> list[int]:
        why_page, report_page = out / "why.json", out / "report.json"
        return [
            why([str(logs), str(closed), "-o", str(why_page)]),
            report([str(logs), str(closed), "-o", str(report_page)]),
        ]

    expected = reads()
    for file in out.iterdir():
        file.unlink()

    def reads_as_well() -> None:
        assert reads() == expected

    done_by(OTHER, reads_as_well)
    for name in ("why.json", "report.json"):
        assert f"{closed}: Permission denied" in (out / name).read_text()
