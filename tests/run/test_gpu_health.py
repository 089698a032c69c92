"""How the GPU is, as rows of a run, with a stand-in for NVML; and what a verdict says of clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.why import judge

from ..fakes import compile_fake
from ..support.array_runs import ArrayRun
from ..support.ranks import ROOT

pytestmark = [pytest.mark.no_torch, pytest.mark.timeout(120)]

# Iterations of 20 ms until there is a row, or until so many.
SCRIPT = """
import json, sys, time
from my_utils import _core

_core.open_output(kind="memory")
stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
stages.watch_gpu(sys.argv[1])
found = []
for number in range(int(sys.argv[2])):
    stages.begin(0)
    stages.end()
    stages.end_host(number)
    time.sleep(0.02)
    _core.drain()
    text = _core.memory_rows().decode()
    found += [line for line in text.splitlines() if ",gpu,COUNTER," in line]
    if found:
        break
stages.forget_host()
print(json.dumps(found))
"""


def rows(folder: Path, uuid: str, most: int, **environment: str) -> list[Mapping[str, int]]:
    compile_fake("fake_nvml.c", folder / "libnvidia-ml.so.1")
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, uuid, str(most)],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[Mapping[str, int]] = []
    for line in json.loads(done.stdout):
        pairs = (pair.split("=") for pair in line.split('"')[1].split(","))
        found.append({key: int(value) for key, value in pairs if key != "tid"})
    return found


def test_a_row_has_what_nvml_says(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "GPU-00000001-fake", 1000, FAKE_NVML_REASONS="0x20")
    assert row == {
        "sm_mhz": 1501, "reasons": 32, "milliwatts": 101_500, "celsius": 51, "pcie_width": 8,
        "ecc_errors": 1, "xids": 0,
    }  # fmt: skip


def test_a_row_has_critical_errors(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "GPU-00000000-fake", 1000, FAKE_NVML_XIDS="31,79")
    assert (row["xids"], row["last_xid"]) == (2, 79)


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_errors_that_the_driver_does_not_report_are_not_zero(tmp_path: Path, function: str) -> None:
    fail = f"{function}:0:3"
    (row,) = rows(tmp_path, "GPU-00000000-fake", 1000, FAKE_NVML_FAIL=fail, FAKE_NVML_XIDS="79")
    assert "sm_mhz" in row and "xids" not in row and "last_xid" not in row


def test_a_verdict_says_that_a_gpu_reported_errors() -> None:
    counts, numbers = np.full((4, 120), np.nan), np.full((4, 120), np.nan)
    counts[:, ::7] = 0.0
    counts[2, 70:119:7], numbers[2, 70:119:7] = 1.0, 79.0
    run = ArrayRun(ranks=4, seed=1)
    found = judge(run.data(counters={"gpu_xids": counts, "gpu_last_xid": numbers}))
    said = "rank 2: its GPU reported a critical error, Xid 79"
    assert said in found.lines(200) and found.notes == [said]
    assert not any("Xid" in line for line in judge(run.data()).lines(200))


def test_errors_whose_count_is_not_known_are_said() -> None:
    counts, numbers = np.full((4, 120), np.nan), np.full((4, 120), np.nan)
    numbers[1, 50], counts[1, 50] = 79.0, np.inf
    numbers[2, 50:52] = np.inf, 31.0
    clocks = np.full((4, 120), 1980.0)
    clocks[3] = 1095.0
    clocks[0, 7], clocks[1:3] = np.inf, np.nan
    run = ArrayRun(ranks=4, seed=1).more("forward", 30, rank=3)
    found = judge(run.data(counters={
        "gpu_xids": counts, "gpu_last_xid": numbers, "gpu_sm_mhz": clocks * [1.0, *[np.inf] * 119],
    }))  # fmt: skip
    assert found.notes == [
        "rank 1: its GPU reported critical errors, the last one Xid 79",
        "rank 2: its GPU reported critical errors, the last one Xid 31",
    ]
    assert "gpu_mhz" not in found.findings[0].detail
    detail = judge(run.data(counters={"gpu_sm_mhz": clocks})).findings[0].detail
    assert (detail["gpu_mhz"], detail["gpu_mhz_others"]) == (1095, 1980)


def test_what_nvml_does_not_say_is_missing_and_not_zero(tmp_path: Path) -> None:
    fail = "nvmlDeviceGetClockInfo:0:3,nvmlDeviceGetTotalEccErrors:0:3"
    (row,) = rows(tmp_path, "GPU-00000000-fake", 1000, FAKE_NVML_FAIL=fail)
    assert row == {
        "reasons": 0, "milliwatts": 100_500, "celsius": 50, "pcie_width": 16, "xids": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("uuid", "environment"),
    [
        ("GPU-no-such-one", {}),
        ("GPU-00000000-fake", {"FAKE_NVML_FAIL": "nvmlInit:0:9"}),
        ("GPU-00000000-fake", {"FAKE_NVML_HANG": "nvmlInit"}),
        ("GPU-00000000-fake", {"FAKE_NVML_HANG": "nvmlDeviceGetPowerUsage"}),
    ],
)
def test_without_an_answer_there_are_no_rows(
    tmp_path: Path, uuid: str, environment: dict[str, str]
) -> None:
    """A library that never returns keeps neither the training nor the end of the process."""
    assert rows(tmp_path, uuid, 20, **environment) == []


@pytest.mark.parametrize(("bits", "reason"), [(0x20, "thermal"), (0x4, "its power limit"), (0, "")])
def test_a_verdict_says_that_a_gpu_is_slower(bits: int, reason: str) -> None:
    run = ArrayRun(ranks=4, seed=1)
    run.more("forward", 30, rank=2)
    clocks, reasons = np.full((4, 120), np.nan), np.full((4, 120), np.nan)
    clocks[:, ::7], reasons[:, ::7] = 1980.0, 0.0
    clocks[2, ::7], reasons[2, ::7] = 1095.0, bits
    clocks[2, ::14], reasons[2, ::14] = 300.0, 1.0  # idle
    one = judge(run.data(counters={"gpu_sm_mhz": clocks, "gpu_reasons": reasons}))
    assert one.findings[0].kind == "straggler" and one.findings[0].ranks == (2,)
    assert one.findings[0].detail["gpu_reason"] == reason
    said = "rank 2's GPU ran at 1,095 MHz, the others at 1,980" + (f": {reason}" if reason else "")
    assert any(line.strip() == said for line in one.lines(200))


def test_a_clock_like_the_others_or_of_no_other_is_not_said() -> None:
    run = ArrayRun(ranks=4, seed=1)
    run.more("forward", 30, rank=2)
    clocks = np.full((4, 120), 1980.0)
    clocks[2] = 1950.0
    assert "gpu_mhz" not in judge(run.data(counters={"gpu_sm_mhz": clocks})).findings[0].detail
    clocks[[0, 1, 3]], clocks[2] = np.nan, 1095.0
    assert "gpu_mhz" not in judge(run.data(counters={"gpu_sm_mhz": clocks})).findings[0].detail
