"""The log of the comparison tools where standard output takes nothing."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from my_utils.compare_tool import CompareWithCPU, NanInfTracker, OpRecorder
from my_utils.core.warnings import forget
from my_utils.profilers.operators.log import OpLog


@contextlib.contextmanager
def closing(stream: TextIO | None) -> Iterator[TextIO | None]:
    try:
        yield stream
    finally:
        forget("op_log")
        with contextlib.suppress(OSError):  # what it holds back cannot be written either
            if stream is not None:
                stream.close()


def full() -> TextIO:
    return open("/dev/full", "w")


def none() -> None:
    """Python's standard output where a shell started it with `>&-`."""


OUTPUTS = pytest.mark.parametrize("output", [full, none])


@OUTPUTS
@pytest.mark.parametrize("tool", [CompareWithCPU, NanInfTracker, OpRecorder])
def test_the_training_continues(
    tool: Any,
    output: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(output()) as stream, caplog.at_level(logging.WARNING, "my_utils"):
        monkeypatch.setattr(sys, "stdout", stream)
        with tool() as running:
            for _ in range(300):
                zeros = torch.zeros(4)
                (zeros / zeros).sum()
                running.step()
        monkeypatch.undo()
    assert running.step_cnt == 300
    told = [text for text in caplog.messages if "standard output cannot be written" in text]
    assert len(told) == 1


@OUTPUTS
def test_lost_lines_are_counted(output: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = OpLog(None)
    with closing(output()) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for _ in range(3):
            log.line("a line")
        log.close()
        monkeypatch.undo()
    assert log.lost == 3
