"""The interpreters of the wheels: where their headers are, and how a program runs with them.

An interpreter of this machine, on PATH or held by pyenv, comes first. Other versions and
processors come from Debian: packages that mmdebstrap unpacks into a folder, of which nothing is
installed. Those of this machine's processor run by their own loader, those of the other by QEMU.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
MACHINES = ("x86_64", "aarch64")

# The Debian release that has each version; none has 3.12.
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid", "3.15": "sid"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}


def run(*command: object, **options: object) -> str:
    """The output of a command; RuntimeError with what it said where it fails."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, **options,  # type: ignore[call-overload]
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}")
    return str(done.stdout)


def environment(folder: Path, python: str, *packages: str) -> Path:
    """The interpreter of a virtual environment that has `packages`."""
    if not (folder / "bin" / "pip").exists():
        run(python, "-m", "venv", "--clear", folder)
    run(folder / "bin" / "pip", "install", "-q", *packages)
    return folder / "bin" / "python"


@cache
def of_this_machine(version: str) -> str | None:
    """The interpreter of this machine with its headers, None where there is none."""
    held = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in [*map(str, reversed(held)), shutil.which(f"python{version}")]:
        if candidate and (include_folder(candidate) / "Python.h").exists():
            return candidate
    return None


@cache
def include_folder(python: str) -> Path:
    return Path(run(python, "-c", "import sysconfig as s; print(s.get_path('include'))").strip())


@cache
def debian_root(version: str, machine: str) -> Path:
    """The folder with Debian's packages of `version`; RuntimeError where it cannot be had."""
    if version not in SUITES:
        raise RuntimeError(f"no release of Debian has Python {version}")
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("mmdebstrap is missing (Debian: apt install mmdebstrap)")
    suite = SUITES[version]
    folder = WORK / f"{suite}-{machine}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    names = [f"python{of}" for of, its in SUITES.items() if its == suite]
    packages = [*names, *(f"lib{name}-dev" for name in names), "libstdc++6"]
    run(
        "mmdebstrap", "--quiet", "--variant=extract", "--skip=check/qemu",
        f"--architectures={ARCHITECTURES[machine]}", f"--include={','.join(packages)}",
        "--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=Acquire::Retries \"5\"",
        suite, folder, mirror(),
    )  # fmt: skip
    for name in ("lib", "lib64"):  # a package that is installed would make these links
        if not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    (folder / "complete").touch()
    return folder


def mirror() -> str:
    """The mirror of Debian that MATRIX_MIRROR or apt's configuration names."""
    if given := os.environ.get("MATRIX_MIRROR"):
        return given
    rows = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"
    ).splitlines()
    for row in rows:
        address, _, label = row.partition(" ")
        if label == "Debian":
            return address
    raise RuntimeError("apt names no mirror of Debian here: give one with MATRIX_MIRROR=...")


def header_folder(version: str, machine: str) -> Path:
    """A folder with the headers in `python` and, where they are apart, the processor's own.

    It is a copy: the real one can stand beside the headers of this machine's C library, which a
    build for another glibc must not see. All versions have the same folder in turn, with files that
    are new, so that what does not include them is not compiled again.
    """
    own = of_this_machine(version)
    if own:
        include = include_folder(own)
    else:
        include = debian_root(version, machine) / f"usr/include/python{version}"
    folder = WORK / "headers"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(include, folder / "python", copy_function=shutil.copyfile)
    apart = f"{machine}-linux-gnu/python{version}"
    if (include.parent / apart).exists():
        shutil.copytree(include.parent / apart, folder / apart, copy_function=shutil.copyfile)
    return folder


def debian_program(version: str, machine: str) -> list[str]:
    """The command that runs Debian's interpreter of that version and processor here."""
    root = debian_root(version, machine)
    program = str(root / f"usr/bin/python{version}")
    if machine == platform.machine():
        libraries = ":".join(f"{root}/{place}lib/{machine}-linux-gnu" for place in ("", "usr/"))
        return [str(root / LOADERS[machine]), "--library-path", libraries, program]
    emulator = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    if emulator is None:
        raise RuntimeError(f"qemu-{machine} is missing (Debian: apt install qemu-user)")
    return [emulator, "-L", str(root), program]
