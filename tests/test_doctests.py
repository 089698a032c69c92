"""Every module can be imported; the examples in its docstrings run, and do what they say."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import my_utils
from my_utils.logger import GlobalLogger
from my_utils.profiling.capture_controller import set_default_controller

from .support.no_gil import needs_stacks

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(my_utils.__path__, "my_utils.")
    if not module.name.endswith(("._core", ".__main__"))
)
MARKS = {"my_utils.analysis.process_stacks.record": needs_stacks}


def has_examples(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and ">>>" in Path(found.origin or "").read_text(encoding="utf-8")


class Finder(doctest.DocTestFinder):
    """Takes what a module's file defines: a class may say that it is of a public module."""

    def _from_module(self, module: Any, object: Any) -> bool:
        if not inspect.isclass(object) or object.__module__ == "my_utils._core":
            return bool(super()._from_module(module, object))  # type: ignore[misc]
        members = (getattr(value, "__func__", value) for value in vars(object).values())
        functions = filter(inspect.isfunction, members)
        written_in = {each.__globals__["__name__"] for each in functions} or {object.__module__}
        return module.__name__ in written_in


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=MARKS.get(name, ()))
        for name in ("my_utils", *MODULES)
        if has_examples(name)
    ],
)
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    for examples in Finder().find(module, name, globs=vars(module).copy()):
        runner.run(examples)
    set_default_controller(None)
    GlobalLogger().close()
    # Events that the examples logged without a setup would join the next one's.
    GlobalLogger().setup(tmp_path / "left", rank=0, world_size=1, console=False)
    GlobalLogger().close()
    assert runner.failures == 0, "see the captured output"


def test_the_main_modules_have_examples() -> None:
    finder = Finder(exclude_empty=True)
    for name in ("my_utils.record.log.logger", "my_utils.record.stages.timers"):
        found = finder.find(importlib.import_module(name))
        assert sum(bool(test.examples) for test in found) >= 3, name


@pytest.mark.parametrize("name", MODULES)
def test_it_can_be_imported(name: str) -> None:
    importlib.import_module(name)
