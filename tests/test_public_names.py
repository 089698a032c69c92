"""Each name of docs/names.md imports from where the table says that it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import tomllib

import pytest

import my_utils

from .conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed")

ROW = re.compile(r"\| (.*?) \| (.*?) \|")
WORD = re.compile(r"`([A-Za-z_][\w.]*)`")
MODULES = {
    "my_utils.CtrlRandom.control_random", "my_utils.DITProfiler", "my_utils.ForwardProfileHook",
    "my_utils.annotations", "my_utils.clockSyncUtils", "my_utils.compare_tool",
    "my_utils.csv2trace", "my_utils.dump_utils", "my_utils.etcd_utils", "my_utils.gpu_mem_tracker",
    "my_utils.logger", "my_utils.main", "my_utils.memory_snapshot", "my_utils.moduleProfiler",
    "my_utils.module_hook", "my_utils.musa.cmake_lists_generator", "my_utils.musa.converter",
    "my_utils.musa.logger_util", "my_utils.musa.musa_extension", "my_utils.musa.simple_porting",
    "my_utils.ncu_analyze_from_csv", "my_utils.oom_restore", "my_utils.pad",
    "my_utils.profilerwrapper", "my_utils.profiling.ProfileManager", "my_utils.profiling.backends",
    "my_utils.profiling.capture_controller", "my_utils.profiling.decorator",
    "my_utils.profiling.trainer_callback", "my_utils.timing", "my_utils.utils",
}  # fmt: skip


def names() -> list[tuple[str, str]]:
    found = []
    for line in (ROOT / "docs/names.md").read_text(encoding="utf-8").splitlines():
        row = ROW.fullmatch(line)
        if row is None:
            continue
        known = re.sub(r"\(.*?\)|the command .*", "", row[1])
        for module in WORD.findall(row[2]):
            found += [(module, name) for name in WORD.findall(known)]
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_names_of(module: str) -> None:
    wanted = [name for place, name in names() if place == module]
    assert wanted, f"docs/names.md has nothing of {module}"
    if module.endswith(("trainer_callback", ".main")):
        pytest.importorskip("transformers", reason="transformers is not installed")
    loaded = importlib.import_module(module)
    missing = [name for name in wanted if getattr(loaded, name, None) is None]
    assert not missing, f"{module} has no {', '.join(missing)}"


def test_the_table_is_whole() -> None:
    assert {module for module, _ in names()} == MODULES
    assert len(names()) == 66


def test_the_command_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["musa-converter"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


NOT_AT_THE_ROOT = {"main", "load", "load_inline"}  # words of every program


@pytest.mark.parametrize("module", sorted(MODULES - {"my_utils.main"}))
def test_names_of_the_table_are_at_the_root(module: str) -> None:
    if module.endswith("trainer_callback"):
        pytest.importorskip("transformers", reason="transformers is not installed")
    loaded = importlib.import_module(module)
    wanted = [name for place, name in names() if place == module and name not in NOT_AT_THE_ROOT]
    for name in wanted:
        assert getattr(my_utils, name) is getattr(loaded, name), name


# The function takes the place of its package when that has been imported, and keeps it.
FUNCTION_OF_ITS_PACKAGE = {"my_utils.tensors": {"passport"}}


def test_no_package_hides_a_public_name() -> None:
    """An imported submodule becomes an attribute of its package, and would stand for the name."""
    for package in pkgutil.walk_packages(my_utils.__path__, "my_utils."):
        if package.ispkg:
            loaded = importlib.import_module(package.name)
            modules = {found.name for found in pkgutil.iter_modules(loaded.__path__)}
            hidden = modules & set(getattr(loaded, "__all__", ()))
            functions = FUNCTION_OF_ITS_PACKAGE.get(package.name, set())
            assert hidden == functions, package.name
            assert all(inspect.isfunction(getattr(loaded, name)) for name in functions)
    roots = {found.name for found in pkgutil.iter_modules(my_utils.__path__)}
    assert not roots & set(my_utils.__all__)


def test_faces_show_what_they_say() -> None:
    for found in pkgutil.walk_packages(my_utils.__path__, "my_utils."):
        if found.name.endswith((".__main__", "._core", "trainer_callback", ".main")):
            continue
        loaded = importlib.import_module(found.name)
        missing = [name for name in getattr(loaded, "__all__", ()) if not hasattr(loaded, name)]
        assert not missing, found.name
        if "__dir__" in vars(loaded):
            assert set(loaded.__all__) <= set(dir(loaded)), found.name
