"""Where commands write: files are whole or as they were, and nothing else is ever replaced."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from my_utils.core.outputs import check_output, check_suffix, open_output

from ..conftest import ROOT, RunPython

pytestmark = pytest.mark.no_torch


def write(path: str | Path, data: bytes = b"new") -> None:
    with open_output(path) as file:
        file.write(data)


# --- files ---


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    with pytest.raises(RuntimeError), open_output(path) as file:
        file.write(b"half")
        file.flush()
        raise RuntimeError
    assert path.read_text() == "old"
    write(path)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.html"]


def test_permissions_stay(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_is_followed_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_text("old")
    (tmp_path / "near").symlink_to("far")
    (tmp_path / "far").symlink_to("disk/file")
    (tmp_path / "dangling").symlink_to("disk/not yet")
    write(tmp_path / "near")
    write(tmp_path / "dangling")
    assert (tmp_path / "near").is_symlink() and (tmp_path / "far").is_symlink()
    assert (tmp_path / "disk" / "file").read_text() == "new"
    assert (tmp_path / "disk" / "not yet").read_text() == "new"


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127])
def test_names_as_long_as_they_may_be(name: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    assert (tmp_path / name).read_text() == "new"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("folder", errno.EISDIR),
        ("folder/", errno.EISDIR),
        ("link to a folder", errno.EISDIR),
        ("not there/", errno.EISDIR),
        ("not there/file", errno.ENOENT),
        ("file/below", errno.ENOTDIR),
        ("loop", errno.ELOOP),
        ("n" * 256, errno.ENAMETOOLONG),
    ],
)
def test_errors_name_the_path_as_it_was_given(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    Path("link to a folder").symlink_to("folder")
    before = sorted(os.listdir())
    for function in (write, check_output):
        with pytest.raises(OSError) as raised:
            function(name)
        assert (raised.value.errno, raised.value.filename) == (code, name)
    assert sorted(os.listdir()) == before
    assert os.listdir("folder") == []


def test_an_error_in_the_block_keeps_its_own_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, open_output(tmp_path / "out"):
        os.stat("/no/such/input")
    assert raised.value.filename == "/no/such/input"


# --- what is not a file ---


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write(path)
    reader.join()
    assert got == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def own_device(path: Path, number: int) -> Path:
    """A node of its own for /dev/null (3) or /dev/full (7), which a test may lose."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, number))
        with open(path, "ab"):
            return path
    except OSError as error:
        pytest.skip(f"devices cannot be made here: {error}")


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    null, full = own_device(tmp_path / "null", 3), own_device(tmp_path / "full", 7)
    write(null)
    with pytest.raises(OSError) as raised:
        write(full)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(full))
    assert stat.S_ISCHR(null.stat().st_mode) and stat.S_ISCHR(full.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["full", "null"]


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output(name: str, tmp_path: Path, run_python: RunPython) -> None:
    program = (
        "from my_utils.core.outputs import open_output\n"
        "print('before')\n"
        f"with open_output({name!r}) as file: file.write(b'bytes ')\n"
        "print('after')"
    )
    assert run_python("-c", program).stdout == "before\nbytes after\n"
    kept = tmp_path / "kept"
    kept.write_text("kept ")
    with kept.open("a") as file:
        subprocess.run(
            [sys.executable, "-c", program], stdout=file, env={"PYTHONPATH": str(ROOT)}, check=True
        )
    assert kept.read_text() == "kept before\nbytes after\n"


def test_a_descriptor_that_is_not_open_is_named() -> None:
    with pytest.raises(OSError) as raised:
        write("/dev/fd/987")
    assert raised.value.filename == "/dev/fd/987"


# --- suffixes ---

KNOWN = (".json", ".pftrace", ".json.gz")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.json", ".json"), ("b/A.JSON", ".json"), ("a.x.json.gz", ".json.gz"), ("-", "")],
)
def test_known_suffixes(name: str, suffix: str) -> None:
    assert check_suffix(name, KNOWN) == suffix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.html", "a.html: unknown suffix '.html'"),
        ("a.gz", "a.gz: unknown suffix '.gz'"),
        ("a", "a: a suffix is missing"),
        (".json", ".json: a suffix is missing"),
        ("x.json/trace", "x.json/trace: a suffix is missing"),
    ],
)
def test_unknown_suffixes_list_the_known(name: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_suffix(name, KNOWN)
    assert str(raised.value) == f"{said}; known are .json, .pftrace and .json.gz"


def test_devices_need_no_suffix(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert check_suffix(tmp_path / "fifo", KNOWN) == ""
