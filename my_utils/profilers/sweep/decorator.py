"""Sweeps shapes and batch sizes over a function. Points that do not fit do not stop the sweep.

>>> import random
>>> @parametrize_shapes(shapes=[100, 1000], batch_sizes=[1, 8], warmup=1, repeats=3)
... def sorting(shape, batch_size):
...     rows = [[random.random() for _ in range(shape)] for _ in range(batch_size)]
...     return lambda: [sorted(row) for row in rows]
>>> result = sorting()
>>> [(point.shape, point.batch_size, point.status) for point in result.points]
[(100, 1, 'ok'), (100, 8, 'ok'), (1000, 1, 'ok'), (1000, 8, 'ok')]
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ...core.aliases import renamed_parameters
from ...core.arguments import check_choice, check_int, check_path, check_switch
from ...core.extras import require
from ...core.public import public
from ...core.warnings import warn_once
from .measure import DEVICES, Device, measure
from .results import Shape, SweepPoint, SweepResult, shape_text

StrPath = str | os.PathLike[str]
OTHERS_MAX = 60  # characters of a further argument that names a point


@public("my_utils.annotations")
class SweptFunction(Protocol):
    """A function that `parametrize_shapes` decorated."""

    results: SweepResult  # of the last sweep, or of the points that pytest ran
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def sweep(self, *args: Any, **kwargs: Any) -> SweepResult:
        """Measures the function at all points, also where pytest runs it at one."""
        ...


@renamed_parameters(shape_list="shapes", batch_size_range="batch_sizes")
def parametrize_shapes(
    shapes: Iterable[Any] | None = None,
    batch_sizes: Iterable[int] | None = None,
    *,
    warmup: int = 3,
    repeats: int = 10,
    device: Device = "auto",
    on_error: Literal["raise", "mark"] = "raise",
    output_csv: StrPath | None = None,
    output_png: StrPath | None = None,
    verbose: bool = False,
) -> Callable[[Callable[..., Any]], SweptFunction]:
    """A decorator that runs a function at every combination of a shape and a batch size.

    `shapes` are whole numbers, tuples of them, or tuples of tuples for several tensors; the
    function gets each as the argument `shape`, and each of `batch_sizes` as `batch_size`. One of
    the two may be None: then the function has no such argument. A function with the arguments
    `num_frames`, `H` and `W` instead of `shape` gets the three numbers of each shape, and one with
    `bs` instead of `batch_size` each batch size.

    What is timed is the call. When the function returns a callable, that is timed instead and the
    function is its preparation: data are created once for each point and are not timed. `warmup`
    calls come before the `repeats` that count. `device`: "cpu" takes the wall clock, "cuda" events
    on the current stream (after one call at least, to see what it returns), "auto" (the default)
    the latter once the process uses the GPU.

    The decorated function

    - called without a shape and a batch size (`f()`, or `f.sweep()`) sweeps, and returns a
      SweepResult; further arguments go to every call;
    - called with one of them is the function itself, untimed;
    - named `test_…` where pytest is loaded is a test for each combination, beside its fixtures and
      other parameters. Each is measured as in a sweep, so it runs `warmup` + `repeats` times; with
      `warmup=0, repeats=1` once. Running out of memory skips it with a reason.

    `f.results` is the SweepResult of the last sweep or of the tests until now. `output_csv` is
    written after each point and `output_png` after the last, whole or not at all; one that cannot
    be written is a warning, and the sweep continues. `verbose` prints the table at the end.

    A point that runs out of memory (torch's allocators on GPU and CPU, MemoryError) is marked
    "oom", its memory is given back, and the sweep continues. Another exception passes through
    unchanged, with `f.results` and the CSV holding the points until there; with `on_error="mark"`
    (in a sweep) it is noted at the point, and the sweep continues.

    Raises TypeError or ValueError at once for bad arguments. Sweeps of the same function must not
    run in two threads at once. CSV and text need no other package; DataFrame and plot need pandas
    and matplotlib (`pip install pandas matplotlib`): ImportError, before the first point where
    `output_png` is given.
    """
    if callable(shapes):
        raise TypeError("parametrize_shapes needs shapes or batch sizes: @parametrize_shapes([…])")
    given = (("shape", shapes), ("batch_size", batch_sizes))
    names = tuple(name for name, values in given if values is not None)
    if not names:
        raise ValueError("shapes and batch_sizes are both None; at least one is wanted")
    checked_shapes = _checked("shapes", shapes, "integers and tuples of integers", _checked_shape)
    checked_sizes = _checked(
        "batch_sizes",
        batch_sizes,
        "integers",
        lambda size: check_int("each of batch_sizes", size, 1),
    )
    check_choice("device", device, DEVICES)
    check_choice("on_error", on_error, ("raise", "mark"))
    settings = _Settings(
        names=names,
        points=list(itertools.product(checked_shapes, checked_sizes)),
        warmup=check_int("warmup", warmup, 0),
        repeats=check_int("repeats", repeats, 1),
        device=device,
        on_error=on_error,
        output_csv=_path("output_csv", output_csv),
        output_png=_path("output_png", output_png),
        verbose=check_switch("verbose", verbose),
    )

    def decorate(function: Callable[..., Any]) -> SweptFunction:
        _check_kind(function)
        taken = tuple(name for each in names for name in _names_in(function, each))
        _check_parameters(function, taken)
        if "num_frames" in taken:
            _check_three_numbers(checked_shapes)
        return _decorated(function, dataclasses.replace(settings, names=taken))

    return decorate


@dataclass(frozen=True)
class _Settings:
    """What the decorator was given, checked.

    names: of the arguments that say which point is meant. points: the values of "shape" and
    "batch_size".
    """

    names: tuple[str, ...]
    points: list[tuple[Shape | None, int | None]]
    warmup: int
    repeats: int
    device: Device
    on_error: str
    output_csv: Path | None
    output_png: Path | None
    verbose: bool

    def keywords(self, shape: Shape | None, batch_size: int | None) -> dict[str, Any]:
        known: dict[str, Any] = {"shape": shape, "batch_size": batch_size, "bs": batch_size}
        if isinstance(shape, tuple):
            known.update(zip(_SIZES, shape, strict=False))
        return {name: known[name] for name in self.names}

    def bind_point(self, given: dict[str, Any]) -> tuple[Any, Any]:
        shape = given.get("shape")
        if "num_frames" in self.names:
            shape = tuple(given.get(name) for name in _SIZES)
        return shape, given.get("bs" if "bs" in self.names else "batch_size")


def _decorated(function: Callable[..., Any], settings: _Settings) -> SweptFunction:
    is_test = "pytest" in sys.modules and function.__name__.startswith("test")
    signature = inspect.signature(function)

    def sweep(*args: Any, **kwargs: Any) -> SweepResult:
        _require_what_plots(settings)
        swept.results = result = SweepResult(function.__qualname__)
        for at in settings.points:
            call = functools.partial(function, *args, **{**kwargs, **settings.keywords(*at)})
            error = _add_point(result, SweepPoint(*at, others=_others(kwargs)), call, settings)
            is_oom = result.points[-1].status == "oom"
            if error is not None and not is_oom and settings.on_error == "raise":
                raise error
        _write(result.plot, settings.output_png)
        if settings.verbose:
            print(result)
        return result

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _has_a_point(signature, settings.names, args, kwargs):
            return sweep(*args, **kwargs)
        call = functools.partial(function, *args, **kwargs)
        if is_test and os.environ.get("PYTEST_CURRENT_TEST"):
            return _test(swept.results, call, settings)
        return call()

    swept = cast(SweptFunction, wrapper)
    swept.results = SweepResult(function.__qualname__)
    swept.sweep = sweep  # type: ignore[method-assign]
    return _marked(swept, settings) if is_test else swept


def _has_a_point(
    signature: inspect.Signature, names: tuple[str, ...], args: Any, kwargs: dict[str, Any]
) -> bool:
    """Whether the arguments say which point is meant."""
    if any(name in kwargs for name in names):
        return True
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return True  # the function's own error says what is wrong
    return any(name in bound for name in names)


def _marked(swept: SweptFunction, settings: _Settings) -> SweptFunction:
    one = len(settings.names) == 1
    values = [tuple(settings.keywords(*point).values()) for point in settings.points]
    mark = sys.modules["pytest"].mark.parametrize(
        ",".join(settings.names),
        [value[0] for value in values] if one else values,
        ids=[_label(*point) for point in settings.points],
    )
    return cast(SweptFunction, mark(swept))


def _label(shape: Shape | None, batch_size: int | None) -> str:
    parts = [shape_text(shape), "" if batch_size is None else f"b{batch_size}"]
    return "-".join(filter(None, parts))


def _test(result: SweepResult, call: functools.partial[Any], settings: _Settings) -> None:
    """One test: its point joins the results. Returns None, which is what pytest wants."""
    _require_what_plots(settings)
    at = settings.bind_point(call.keywords)
    others = {name: value for name, value in call.keywords.items() if name not in settings.names}
    point = SweepPoint(*at, others=_others(others))
    error = _add_point(result, point, call, settings)
    if len(result) >= len(settings.points):
        _write(result.plot, settings.output_png)
    if point.status == "oom":
        sys.modules["pytest"].skip(f"out of memory at {_label(*at)}: {point.error}")
    if error is not None:
        raise error


def _add_point(
    result: SweepResult, point: SweepPoint, call: Callable[[], Any], settings: _Settings
) -> BaseException | None:
    """Measures the point and adds it. Returns the exception that ended it."""
    error = measure(point, call, settings.warmup, settings.repeats, settings.device)
    result.points.append(point)
    _write(result.to_csv, settings.output_csv)
    return error


def _path(name: str, given: StrPath | None) -> Path | None:
    return None if given is None else check_path(name, given, or_none=True)


def _require_what_plots(settings: _Settings) -> None:
    if settings.output_png is not None:
        require("matplotlib", "the plot of a sweep")


def _write(how: Callable[[StrPath], None], path: StrPath | None) -> None:
    if path is None:
        return
    try:
        how(path)
    except OSError as error:
        warn_once(
            f"sweep {os.fspath(path)}", f"{path} could not be written, the sweep goes on: {error}"
        )


def _others(kwargs: dict[str, Any]) -> str:
    """Further arguments that identify a point: plain values and torch's dtypes and devices."""
    shown = {
        name: str(value)
        for name, value in kwargs.items()
        if isinstance(value, (str, int, float, bool)) or type(value).__name__ in ("dtype", "device")
    }
    return " ".join(f"{name}={text}" for name, text in shown.items() if len(text) <= OTHERS_MAX)


# --- arguments ---


def _checked(name: str, values: Any, of: str, check: Callable[[Any], Any]) -> list[Any]:
    if values is None:
        return [None]
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r}: pass a list of {of}")
    found = [check(value) for value in values]
    if not found:
        raise ValueError(f"{name} is empty; at least one is wanted, or None to leave it out")
    return found


def _checked_shape(shape: Any) -> Shape:
    if isinstance(shape, int) and not isinstance(shape, bool):
        if shape < 0:
            raise ValueError(f"shapes: {shape} is negative")
        return shape
    if isinstance(shape, (tuple, list)):
        return tuple(_checked_shape(part) for part in shape)
    raise TypeError(f"shapes: {shape!r} is neither an integer nor a tuple of integers")


_SIZES = ("num_frames", "H", "W")


def _names_in(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    """The arguments by which the function takes a shape or a batch size."""
    others = _SIZES if name == "shape" else ("bs",)
    parameters = inspect.signature(function).parameters
    return others if name not in parameters and parameters.keys() >= set(others) else (name,)


def _check_three_numbers(shapes: Iterable[Any]) -> None:
    for shape in shapes:
        if not isinstance(shape, tuple) or [type(size) for size in shape] != [int] * len(_SIZES):
            raise ValueError(f"shapes: {shape!r} must be three integers: num_frames, H and W")


def _check_kind(function: Any) -> None:
    """Raises TypeError unless `function` can be timed."""
    if not inspect.isfunction(function):
        raise TypeError(f"parametrize_shapes decorates functions, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is asynchronous; its call does no work to time")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator; its call does no work to time")


def _check_parameters(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Raises TypeError unless `function` can be called with `names` as keywords."""
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in names:
        found = parameters.get(name)
        if not takes_all and (found is None or found.kind is found.POSITIONAL_ONLY):
            raise TypeError(f"{function.__qualname__} takes no argument {name!r}")
