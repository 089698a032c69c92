"""The examples in the docstrings run, and do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import my_utils
from my_utils.logger import GlobalLogger
from my_utils.profiling.capture_controller import set_default_controller

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(my_utils.__path__, "my_utils.")
    if not module.name.endswith("._core")
)


@pytest.mark.parametrize("name", ["my_utils", *MODULES])
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    set_default_controller(None)
    GlobalLogger().close()
    # Events that the examples logged without a setup would join the next one's.
    GlobalLogger().setup(tmp_path / "left", rank=0, world_size=1, console=False)
    GlobalLogger().close()
    assert result.failed == 0, "see the captured output"


def test_the_main_modules_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in ("my_utils.logger", "my_utils.utils"):
        found = finder.find(importlib.import_module(name))
        assert sum(bool(test.examples) for test in found) >= 3, name
