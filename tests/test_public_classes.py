"""What holds for every public class: it shows itself, in short and whatever state it is in."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import my_utils

torch = pytest.importorskip("torch", reason="torch is not installed")

# What these are derived from shows their state, or is what users expect to see.
SHOWN_BY_THEIR_BASE = {
    "ClockOffset",  # a float
    "DebuggingEvent",  # threading's: set or unset
    "FlushingFileHandler",  # logging's: the path and the level
    "Frame",  # msgspec's: all fields
    "ProfilerOptions",  # a dict
    "StackRecord",  # msgspec's: all fields
    "Thread",  # msgspec's: all fields
}
# Mixed into classes of users, a metaclass, and a protocol: nobody makes instances of them.
NOT_SHOWN = {"CaptureWorker", "SingletonMeta", "SweptFunction"}


def public_modules() -> list[str]:
    """The packages, and the paths that users know: what is deeper is private, but for the folders
    whose modules users import by name."""
    found = []
    for module in pkgutil.iter_modules(my_utils.__path__, "my_utils."):
        path = [str(Path(my_utils.__path__[0], module.name.partition(".")[2]))]
        inside = list(pkgutil.iter_modules(path, f"{module.name}."))
        modules_too = module.name.rpartition(".")[2] in ("profiling", "CtrlRandom", "musa")
        found += [module.name, *(each.name for each in inside if each.ispkg or modules_too)]
    return sorted(name for name in found if not name.rpartition(".")[2].startswith("_"))


@functools.cache
def public_classes() -> dict[str, type]:
    """Not before a test asks: every process that collects tests would import all that is public."""
    found: dict[type, str] = {}
    for name in public_modules():
        try:
            module = importlib.import_module(name)
            values = {public: getattr(module, public) for public in getattr(module, "__all__", ())}
        except ImportError:
            continue  # what it needs is not installed
        for public, value in values.items():
            if inspect.isclass(value):
                found.setdefault(value, f"{name}.{public}")
    return {name: cls for cls, name in found.items()}


def shown_by(cls: type) -> type:
    """The class whose `__repr__` it has."""
    return next(base for base in cls.__mro__ if "__repr__" in vars(base))


def shows_itself(cls: type) -> bool:
    if cls.__name__ in NOT_SHOWN or issubclass(cls, BaseException | enum.Enum):
        return True  # an exception shows its message, a choice its value
    if typing.is_typeddict(cls):
        return True  # its values are dicts
    if cls.__name__ in SHOWN_BY_THEIR_BASE:
        return shown_by(cls) is not object
    return shown_by(cls).__module__.partition(".")[0] == "my_utils"


def test_every_public_class_shows_itself() -> None:
    assert [name for name, cls in public_classes().items() if not shows_itself(cls)] == []


def public_functions() -> dict[str, Callable[..., Any]]:
    """Public functions, and the public methods of public classes."""
    found: dict[str, Callable[..., Any]] = {}
    for name in public_modules():
        module = sys.modules[name]
        for public in getattr(module, "__all__", ()):
            value = vars(module).get(public)
            if inspect.isfunction(value) and value.__module__.startswith("my_utils."):
                found[f"{name}.{public}"] = value
    for path, cls in public_classes().items():
        for name, value in vars(cls).items():
            if name == "__init__" or not name.startswith("_"):
                value = value.fget if isinstance(value, property) else value
                value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if inspect.isfunction(value):
                    found[f"{path}.{name}"] = value
    return found


def why_unresolved(value: Any) -> str:
    """Why its annotations do not resolve; empty if they do."""
    try:
        hints = typing.get_type_hints(value)
    except Exception as error:
        return repr(error)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return ", ".join(field.name for field in fields if field.name not in hints)


def test_annotations_can_be_resolved() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    annotated: dict[str, Any] = {**public_classes(), **public_functions()}
    assert len(annotated) > 300
    unresolved = {name: why_unresolved(value) for name, value in annotated.items()}
    assert {name: why for name, why in unresolved.items() if why} == {}


def with_methods() -> list[tuple[type, Callable[..., Any]]]:
    """Classes of the modules that users import, each with a method that is written in it."""
    folder = my_utils.__path__[0]
    found: list[tuple[type, Callable[..., Any]]] = []
    for path, cls in public_classes().items():
        functions = [one for one in vars(cls).values() if inspect.isfunction(one)]
        own = [one for one in functions if one.__code__.co_filename.startswith(folder)]
        own = [one for one in own if one.__qualname__ == f"{cls.__qualname__}.{one.__name__}"]
        if path.count(".") == 2 and own:
            found.append((cls, own[0]))
    return found


def test_the_source_of_a_class_is_in_the_file_of_its_methods() -> None:
    """As docs/migrate.md says."""
    found = with_methods()
    assert len(found) > 30
    for cls, method in found:
        module = inspect.getmodule(method)
        assert module is not None, cls
        assert f"\nclass {cls.__name__}" in inspect.getsource(module), cls
        assert inspect.getsource(method).lstrip().startswith(("def ", "@", "async def ")), cls


def test_annotations_cost_no_import() -> None:
    code = (
        "import sys; from my_utils import csv2trace, logger, timing; "
        "from my_utils.profilers import capture; capture.listen, "
        "csv2trace.convert, logger.GlobalLogger, timing.TimeData, capture.Request; "
        "print(sorted({'torch', 'numpy', 'pandas', 'decimal', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_classes_are_found() -> None:
    names = {cls.__name__ for cls in public_classes().values()}
    assert len(names) > 60
    assert names > NOT_SHOWN | SHOWN_BY_THEIR_BASE


def shown() -> list[tuple[str, Callable[[], Any]]]:
    """What stands there, and what makes it."""
    model = torch.nn.Linear(2, 2)
    u = my_utils
    return [
        ("NoOpBackend()", lambda: u.NoOpBackend()),
        ("CudaProfilerBackend(synchronize=False)", lambda: u.CudaProfilerBackend(False)),
        (
            "CaptureController(backend=NoOpBackend(), window=None, armed=[])",
            lambda: u.CaptureController(u.NoOpBackend()),
        ),
        ("ForwardProfilerHook(3, 5)", lambda: u.ForwardProfilerHook(3, 5)),
        ("ModuleProfiler(backward=True, use_cuda=None, running=False)",
            lambda: u.ModuleProfiler(model, backward=True)),
        ("ForwardTraceRecorder(name='a', installed=False, recording=False)",
            lambda: u.ForwardTraceRecorder(model, "a")),
        ("MemorySnapshotter(output=PosixPath('/x'), max_entries=100000, open_names=())",
            lambda: u.MemorySnapshotter("/x")),
        ("NoOpMemorySnapshotter()", lambda: u.NoOpMemorySnapshotter()),
        ("GPU_Performance_Tracker(prefix='run', interval_s=0.5, samples=0, is_monitoring=False)",
            lambda: u.GPU_Performance_Tracker("run", 0.5)),
        ("UniversalLoader(root_dir='/x')", lambda: u.UniversalLoader("/x")),
        ("DumpTensorIO(root_dir='/x', compare_file=None, strict=False)",
            lambda: u.DumpTensorIO("/x")),
        ("CompareWithCPU(enabled=True, step_cnt=0, errors=0)", lambda: u.CompareWithCPU()),
        ("NanInfTracker(enabled=False, step_cnt=0, errors=0)", lambda: u.NanInfTracker(False)),
        ("ProfilerWrapper(prefix='p', output=PosixPath('.'), enabled=True)",
            lambda: u.ProfilerWrapper(prefix="p")),
        ("FlexibleProfiler(task_type='DIT', output=PosixPath('.'), enabled=True)",
            lambda: u.FlexibleProfiler("DIT")),
        ("TimeManager(max_samples=9)", lambda: u.TimeManager(max_samples=9)),
        ("catch_oom(timeout_s=7.0, happened=False, here=False)", lambda: u.catch_oom(7.0)),
    ]  # fmt: skip


@pytest.mark.parametrize("text, make", shown(), ids=[text.partition("(")[0] for text, _ in shown()])
def test_an_object_is_shown_as(text: str, make: Callable[[], Any]) -> None:
    assert repr(make()) == text


def has_short_repr(cls: type) -> bool:
    code = getattr(shown_by(cls).__repr__, "__code__", None)
    return "short_repr" in getattr(code, "co_names", ())


def test_a_half_made_object_is_shown() -> None:
    """As in the traceback of an `__init__` that raised."""
    found = [cls for cls in public_classes().values() if has_short_repr(cls)]
    assert len(found) > 20
    for cls in found:
        assert repr(cast(Any, cls).__new__(cls)).startswith(f"{cls.__name__}(")


def test_long_values_are_cut() -> None:
    text = repr(my_utils.UniversalLoader("/" + "x" * 10_000))
    assert len(text) < 150


@pytest.mark.parametrize("name", ["CompareError", "NanInfError"])
def test_an_error_is_pickled_with_what_it_holds(name: str) -> None:
    """As a worker of a pool sends it to its parent."""
    error = getattr(my_utils.compare_tool, name)("gelu fails", ["a.pt", "b.pt"])
    loaded = pickle.loads(pickle.dumps(error))
    assert (type(loaded), str(loaded), loaded.files) == (type(error), "gelu fails", error.files)
