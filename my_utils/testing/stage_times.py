"""The fixture stage_times: a timer, and a gate against the last run of the test that passed."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from ..analysis.diff.comparison import compare_files
from ..analysis.diff.gates import Gate, judge_gate, parse_gate, worst_of
from ..analysis.diff.text import gate_line
from ..core.reprs import short_repr
from ..core.units import count_text
from ..record.log.logger import GlobalLogger
from ..record.stages.timers import MyTimer
from .names import file_name, of_rank

MARKER = "my_utils_gate"
INI = "my_utils_gates"
_LAST, _NEW, _BEFORE = "last", "new", "before"

_T = TypeVar("_T")


class StageTimesWarning(UserWarning):
    """A gate could not be decided; the text says why."""


class StageTimes:
    """What the fixture `stage_times` is: the timer of a test.

    timer: a MyTimer; its rows go to `folder`.

    >>> def test_step(stage_times):  # in a test file
    ...     for batch in stage_times.steps(range(60)):
    ...         with stage_times.timer.time_stage("forward"):
    ...             ...
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        config = request.config
        self._home = _home(config) / f"{file_name(request.node.nodeid)}{of_rank()}"
        self._gates = _read_gates(request)
        self._is_update = bool(config.getoption("my_utils_update"))
        self.folder = self._home / _NEW
        if GlobalLogger().is_set_up:
            raise RuntimeError(
                "stage_times must write the profile CSV of this process, which GlobalLogger writes "
                f"to {GlobalLogger().log_dir}: close() it before the test"
            )
        self._open()
        self.timer = MyTimer(use_cuda=_has_cuda(), tag="stage_times")

    def __repr__(self) -> str:
        return short_repr(self, "folder")

    def _open(self) -> None:
        """Rows from before the test, which waited in memory, go to a separate folder."""
        for name in (_BEFORE, _NEW):
            shutil.rmtree(self._home / name, ignore_errors=True)
            GlobalLogger().setup(self._home / name, console=False)

    def steps(self, items: Iterable[_T]) -> Iterator[_T]:
        """Each of the items, as a step of the timer."""
        for number, item in enumerate(items):
            self.timer.set_step(number)
            yield item
            self.timer.step()

    def close(self) -> None:
        """Writes out what was recorded. Calls after the first do nothing."""
        if GlobalLogger().log_dir == self.folder:
            GlobalLogger().close()

    def judge(self) -> None:
        """Compares this run with the last one that passed, and keeps it in place of that.

        Fails the test if a gate failed. Where one is undecided it warns, and the last run stays.
        Without a last run, or with `--my-utils-update`, nothing is compared.
        """
        self.close()
        last = self._home / _LAST
        is_compared = self._gates and last.exists() and not self._is_update
        if is_compared and not _passed(self._gates, last, self.folder):
            return
        shutil.rmtree(last, ignore_errors=True)
        self.folder.rename(last)


def _home(config: pytest.Config) -> Path:
    """Where runs are kept."""
    chosen = config.getini("my_utils_baseline")
    if chosen:
        return Path(config.rootpath, chosen)
    cache = getattr(config, "cache", None)
    if cache is None:
        raise RuntimeError("pytest has no cache here: set my_utils_baseline in its ini file")
    home: Path = cache.mkdir("my_utils_stage_times")
    return home


def _read_gates(request: pytest.FixtureRequest) -> list[Gate]:
    """Of the test's markers, or where it has none those of the ini file. TypeError and ValueError
    for what is no limit."""
    markers = list(request.node.iter_markers(MARKER))
    for marker in markers:
        if marker.kwargs:
            raise TypeError(f"{MARKER} must have its limits by position, not {marker.kwargs}")
    texts = [text for marker in markers for text in marker.args]
    name, texts = (MARKER, texts) if texts else (INI, request.config.getini(INI))
    return [_read_gate(name, text) for text in texts]


def _read_gate(name: str, text: object) -> Gate:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str such as 'iter:+10%', not {text!r:.100}")
    try:
        return parse_gate(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _passed(gates: Sequence[Gate], last: Path, new: Path) -> bool:
    """Whether all gates passed, or there is nothing to compare with; fails the test if one
    failed, and warns of those that are undecided."""
    found = compare_files([str(last)], [str(new)]).found
    results = [judge_gate(gate, found) for gate in gates]
    worst = worst_of(results)
    if worst == "passed":
        return True
    lines = "\n".join([*found.lines(), *(gate_line(one) for one in results)])
    if worst == "failed":
        pytest.fail(f"slower than A, the last run that passed ({last}):\n{lines}", pytrace=False)
    undecided = sum(one.status == "undecided" for one in results)
    text = f"{count_text(undecided, 'gate')} undecided against A, {last}:\n{lines}"
    warnings.warn(text, StageTimesWarning, stacklevel=2)
    return found.step is None  # then the next run is compared with this one
