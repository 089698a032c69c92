"""The flags that the C code is compiled with, as csrc/flags.py prints them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.no_torch


def flags(werror: str | None) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "MY_UTILS_WERROR"}
    if werror is not None:
        env["MY_UTILS_WERROR"] = werror
    done = subprocess.run(
        [sys.executable, "csrc/flags.py", "csrc/engine/base/error.c"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("value", [None, "", "0", "no", "off"])
def test_a_warning_ends_no_build_of_a_user(value: str | None) -> None:
    assert "-Werror" not in flags(value)
    assert {"-Wall", "-Wextra"} <= set(flags(value))


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_a_warning_ends_the_builds_of_the_checks(value: str) -> None:
    assert "-Werror" in flags(value)


def sources_for(machine: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "csrc/flags.py", "--sources", "csrc/engine"],
        cwd=ROOT,
        env={**os.environ, "MY_UTILS_MACHINE": machine},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cross_build_compiles_the_files_of_its_target() -> None:
    intel = set(sources_for("x86_64").stdout.split())
    arm = set(sources_for("aarch64").stdout.split())
    assert intel & arm
    assert not any(name.endswith(("_avx2.c", "_avx512.c")) for name in arm)
    assert any(name.endswith("_avx2.c") for name in intel)
    assert not any(name.endswith("_neon.c") for name in intel)
    assert any(name.endswith("_neon.c") for name in arm)


def test_an_unknown_target_ends_the_build() -> None:
    done = sources_for("arm64")
    assert done.returncode != 0
    assert "MY_UTILS_MACHINE is 'arm64', but must be aarch64 or x86_64" in done.stderr
