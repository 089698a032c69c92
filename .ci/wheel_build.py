"""Builds one wheel: zig's compiler, manylinux's policy, a bill of materials, one order of files."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

from wheel_pythons import ROOT, WORK, header_folder, run

GLIBC = (2, 28)
MOST_BYTES = 2_000_000


def commit_time() -> str:
    """The time of the last commit, for what is built to hold no other."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


def finish_source(archive: Path) -> None:
    """Writes the source distribution again, in one order, with one owner and one date."""
    date = int(commit_time())
    with (
        tarfile.open(archive) as before,
        gzip.GzipFile(f"{archive}.new", "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = date, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    os.replace(f"{archive}.new", archive)


def build(tools: Path, version: str, machine: str, source: Path, out: Path) -> Path:
    """A wheel of `source`, in which no path of this machine stands.

    One interpreter, that of `tools`, builds for all of them: the headers say for which. The engine
    has no Python in it, and its objects of an earlier build in `source` are taken again.
    """
    headers = header_folder(version, machine)
    compiler = f"{tools / 'python-zig'} cc -target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    flags = [
        "-g0", "-fwrapv", "-DNDEBUG",  # the last two as in builds with CPython's own flags
        "-ffunction-sections", "-fdata-sections",  # what only tests call is left out
        f"-I{headers / 'python'}", f"-idirafter{headers}",
        f"-ffile-prefix-map={source}=.", f"-ffile-prefix-map={WORK}=build",
    ]  # fmt: skip
    env = {
        **os.environ,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s -Wl,--gc-sections",
        "CFLAGS": " ".join(flags),
        "MY_UTILS_MACHINE": machine,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so",
        "SOURCE_DATE_EPOCH": commit_time(),
    }
    for leftover in [*(source / "build").glob("lib*"), *(source / "build").glob("bdist*")]:
        shutil.rmtree(leftover)
    run(tools / "python", "setup.py", "-q", "bdist_wheel", "--dist-dir", out, cwd=source, env=env)
    [wheel] = out.glob("*.whl")
    return wheel


def check_policy(tools: Path, wheel: Path) -> None:
    """RuntimeError where the wheel asks for a newer glibc, or for other libraries."""
    said = run(tools / "auditwheel", "show", wheel)
    allowed = re.search(r'platform tag:\s*"manylinux_(\d+)_(\d+)_', said)
    if not allowed or (int(allowed[1]), int(allowed[2])) > GLIBC:
        raise RuntimeError(f"{wheel.name} asks for more than manylinux_2_28 has:\n{said}")


def bill_of_materials(name: str, version: str, nvtx: str) -> bytes:
    """What the wheel is made of, as CycloneDX."""

    def component(kind: str, package: str, of: str) -> dict[str, str]:
        purl = f"pkg:pypi/{package}@{of}"
        return {"type": kind, "bom-ref": purl, "name": package, "version": of, "purl": purl}

    own, headers = component("library", name, version), component("library", "nvidia-nvtx", nvtx)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [headers],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [headers["bom-ref"]]}],
    }
    return json.dumps(document, indent=1).encode()


def finish(raw: Path, python: str, machine: str, nvtx: str, folder: Path) -> Path:
    """Writes the wheel for the interpreter `python`, as 3.11, into `folder`.

    It has a bill of materials, and its files have one order and one date, so that equal contents
    are equal bytes. Returns its path.
    """
    with zipfile.ZipFile(raw) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    [record] = [name for name in files if name.endswith(".dist-info/RECORD")]
    name, version = record.split(".dist-info", maxsplit=1)[0].split("-")
    inner = record.removesuffix("RECORD")
    del files[record]
    kind = f"cp{python.replace('.', '')}"
    tag = f"{kind}-{kind}-manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    files[f"{inner}WHEEL"] = re.sub(rb"Tag: .*", f"Tag: {tag}".encode(), files[f"{inner}WHEEL"])
    files[f"{inner}sboms/{name}.cdx.json"] = bill_of_materials(name, version, nvtx)
    target = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in [*sorted(files.items()), (record, record_of(files, record))]:
            entry = zipfile.ZipInfo(path)  # 1980, the date that zip begins with
            entry.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=9)
    return target


def record_of(files: dict[str, bytes], record: str) -> bytes:
    """The text of RECORD: a digest and a size for each file, and none for itself."""
    rows = io.StringIO()
    lines = csv.writer(rows, lineterminator="\n")
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.writerow([path, f"sha256={digest}", len(data)])
    lines.writerow([record, "", ""])
    return rows.getvalue().encode()


def check_contents(wheel: Path, version: str, machine: str, folders: list[Path]) -> None:
    """RuntimeError where a wheel is too large, not stripped, or names a folder of this machine."""
    if wheel.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{wheel.name} has {wheel.stat().st_size} bytes")
    suffix = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    modules = [data for name, data in contents.items() if name == f"my_utils/_core{suffix}"]
    if len(modules) != 1:
        raise RuntimeError(f"{wheel.name} has {len(modules)} modules named *{suffix}")
    if b".symtab" in modules[0] or b".debug_info" in modules[0]:
        raise RuntimeError(f"the module of {wheel.name} is not stripped")
    for folder in folders:
        if os.fsencode(folder) in modules[0]:
            raise RuntimeError(f"the module of {wheel.name} names {folder}")
