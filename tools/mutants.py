"""Whether the tests notice changed lines: `make mutants`, an hour.

`tests/mutants.toml` lists changes of one line each, drawn at random over engine, binding, rules
and readers, with the tests that run the line. Each is made in a copy of the newest commit, and its
tests run until one fails: those in C first. A change that none of them notices has survived. Ends
with their number, and with 1 where one survived that is not said to make no difference.

    python -m tools.mutants                 # all
    python -m tools.mutants verdict csv     # those whose file has one of these in its path
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
COPY = ROOT / "build" / "mutants"
TIMEOUT = 900  # seconds of one command: a change may make an endless loop


@dataclass(frozen=True)
class Mutant:
    """old: stands once in the file. new: what takes its place. tests: files for pytest, and of C
    FOLDER/test_NAME. same: why the change makes no difference, else empty."""

    file: str
    old: str
    new: str
    tests: list[str]
    same: str = ""

    def made_in(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.file} has {text.count(self.old)} times: {self.old}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def listed(parts: list[str]) -> list[Mutant]:
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**entry) for entry in entries]
    return [one for one in mutants if not parts or any(part in one.file for part in parts)]


def run(*command: str) -> bool:
    """In the copy; whether it ended well, and in time."""
    env = {**os.environ, "PYTHONPATH": str(COPY), "MY_UTILS_WERROR": ""}
    try:
        done = subprocess.run(
            command, cwd=COPY, env=env, capture_output=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def build(*command: str) -> None:
    if not run(*command):
        raise SystemExit(f"does not compile: {' '.join(command)}")


def build_for_c(test: str) -> None:
    makefile = "csrc/engine/tests/Makefile"
    program = f"build/ctest/plain/{test}"
    build("make", "-s", "-j2", "-f", makefile, f"PYTHON={sys.executable}", program)


def build_for_python() -> None:
    build(sys.executable, "setup.py", "-q", "build_ext", "--inplace")


def commands(mutant: Mutant) -> Iterator[tuple[str, list[str]]]:
    """The tests' names and what runs them, each after what it needs is built. A change that does
    not compile is none."""
    in_c = [test for test in mutant.tests if not test.endswith(".py")]
    for test in in_c:
        build_for_c(test)
        yield test, [f"build/ctest/plain/{test}"]
    in_python = [test for test in mutant.tests if test.endswith(".py")]
    if in_python and mutant.file.startswith("csrc"):
        build_for_python()
    for test in in_python:
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not thorough"]
        yield test, [sys.executable, "-m", "pytest", *options, test]


def noticed_by(mutant: Mutant) -> str:
    """The first test that fails with it; empty where none does."""
    path = COPY / mutant.file
    kept = path.read_bytes()
    try:
        mutant.made_in(path)
        return next((name for name, command in commands(mutant) if not run(*command)), "")
    finally:
        path.write_bytes(kept)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("parts", nargs="*", help="only files with one of these in their path")
    mutants = listed(parser.parse_args(arguments).parts)
    if not COPY.exists():
        subprocess.run(["git", "clone", "-q", str(ROOT), str(COPY)], check=True)
    subprocess.run(["git", "fetch", "-q", "origin"], cwd=COPY, check=True)
    subprocess.run(["git", "reset", "-q", "--hard", "origin/HEAD"], cwd=COPY, check=True)
    build_for_python()
    survived = 0
    for one in mutants:
        test = noticed_by(one)
        survived += not test and not one.same
        said = test or (f"makes no difference: {one.same}" if one.same else "survived")
        print(f"{one.file}: {one.new.strip()}\n    {said}", flush=True)
    print(f"{len(mutants)} changed lines, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
