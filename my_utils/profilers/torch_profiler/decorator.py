"""`@profiler` and `step_profiler`: torch's profiler on chosen steps of a training function.

>>> import os, tempfile, torch
>>> folder = tempfile.mkdtemp()
>>> @profiler(output_dir=folder, skip_first=0, with_flops=False)
... def train(steps):
...     weight = torch.ones(8, 8)
...     for step in range(steps):
...         weight = weight @ weight / 8
...         step_profiler()
>>> train(5)  # doctest: +ELLIPSIS
train on rank 0, steps 2 to 4: top operations by ... time
...
>>> sorted(os.listdir(folder))
['rank_0', 'trace_rank_0.json']
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypedDict, TypeVar, overload

from ...core.arguments import check_bool, check_int, check_path
from ...core.public import public
from ...core.ranks import check_ranks
from ...core.warnings import warn_once
from ...core.wrapping import Scope, decorate
from .decorated_run import Run, Settings, current
from .step_windows import Schedule

F = TypeVar("F", bound=Callable[..., Any])


@overload
def profiler(function: F, /) -> F: ...


@overload
def profiler(
    switch: bool | None = None,
    /,
    *,
    enabled: bool | Callable[..., object] = True,
    output_dir: str | os.PathLike[str] = "./profiler_logs",
    skip_first: int = 1,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    with_stack: bool = False,
    with_flops: bool = True,
    with_modules: bool = False,
    nsight_enabled: bool = False,
    nsight_output: str | os.PathLike[str] = "nsight_profile",
    ranks: int | Iterable[int] | None = None,
) -> Callable[[F], F]: ...


def profiler(
    function: Any = None,
    /,
    *,
    enabled: bool | Callable[..., object] = True,
    output_dir: str | os.PathLike[str] = "./profiler_logs",
    skip_first: int = 1,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    with_stack: bool = False,
    with_flops: bool = True,
    with_modules: bool = False,
    nsight_enabled: bool = False,
    nsight_output: str | os.PathLike[str] = "nsight_profile",
    ranks: int | Iterable[int] | None = None,
) -> Any:
    """A decorator, `@profiler` or `@profiler(...)`, that profiles steps of each call.

    The function calls `step_profiler()` at the end of each step. The first `skip_first` steps are
    not profiled; then come `repeat` cycles (0: until the function ends) of `wait` steps that are
    not profiled, `warmup` steps with torch's profiler on and its results dropped, and `active`
    steps that are recorded.

    enabled: False returns the function unchanged, and so does `@profiler(False)`. A callable is
        asked at each call, with the arguments of the call: `enabled=lambda args: args.profile`.
    output_dir: created if missing. Each cycle leaves `rank_<rank>/<host>_<pid>.<ns>.pt.trace.json`,
        as TensorBoard reads it; `trace_rank_<rank>.json` is that of the last. An actor of Ray
        without a rank has `actor_<id>` instead of `rank_<rank>`, a task `worker_<id>`.
    with_flops: records shapes, and counts FLOPs from them; the table has them.
    with_stack, with_modules: as torch's profiler takes them.
    nsight_enabled: starts the CUDA profiler for the active steps, for a program that runs under
        `nsys profile --capture-range=cudaProfilerApi`; elsewhere it says so once, with the command,
        in which `nsight_output` names the report. Under nsys torch's profiler leaves the GPU's
        events to it. Without CUDA it says that once.
    ranks: which ranks profile; None means all. Rank 0, or the lowest of them where 0 is not among
        them, prints the operators that took longest.

    The function may be a coroutine function, a generator or an asynchronous one, a method, or a
    static or class method; it keeps its name and signature, and pickles as far as it did. Between
    the yields of a generator its consumer's work is recorded too.

    One profiler runs at a time in a process: a profiled function that a profiled one calls runs
    unprofiled, and its steps count for neither. A cycle that overlaps one of a concurrent function
    runs unprofiled, too. Each case warns. A function that ends early leaves what was recorded until
    then, and one that ends before any recording warns of how many steps it needs. Its exceptions
    are raised unchanged. What fails in profiling is logged, and never reaches the function. Outside
    the windows a step costs a function call.

    Raises TypeError or ValueError at once for wrong arguments.
    """
    if isinstance(function, bool):
        if enabled is not True:
            raise TypeError("enabled is given twice, by position and by keyword")
        function, enabled = None, function
    if function is not None and not (callable(function) or isinstance(function, classmethod)):
        raise TypeError(f"@profiler takes a function or keywords, not {function!r:.100}")
    if not isinstance(enabled, bool) and not callable(enabled):
        raise TypeError(
            f"enabled must be a bool or a callable that gives one, not {enabled!r:.100}"
        )
    settings = Settings(
        enabled=enabled,
        output_dir=os.fspath(check_path("output_dir", output_dir)),
        schedule=Schedule(
            skip_first=check_int("skip_first", skip_first, 0),
            wait=check_int("wait", wait, 0),
            warmup=check_int("warmup", warmup, 0),
            active=check_int("active", active, 1),
            repeat=check_int("repeat", repeat, 0),
        ),
        with_stack=check_bool("with_stack", with_stack),
        with_flops=check_bool("with_flops", with_flops),
        with_modules=check_bool("with_modules", with_modules),
        nsight_enabled=check_bool("nsight_enabled", nsight_enabled),
        nsight_output=os.fspath(check_path("nsight_output", nsight_output)),
        ranks=check_ranks("ranks", ranks),
    )
    if function is not None:
        return _decorated(function, settings)
    return functools.partial(_decorated, settings=settings)


def step_profiler() -> None:
    """Ends a step of the profiled function that calls it, directly or through others.

    Does nothing elsewhere, nor in threads that the function starts; it works in asyncio tasks that
    the function starts.
    """
    run = current.get()
    if run is not None:
        run.step()


# --- the command line ---


def add_profiler_args(parser: argparse.ArgumentParser) -> None:
    """Adds `--profile` and `--nsight`; `profiler_options` makes keywords of them.

    >>> parser = argparse.ArgumentParser()
    >>> add_profiler_args(parser)
    >>> profiler_options(parser.parse_args(["--profile"]))
    {'enabled': True, 'nsight_enabled': False}
    """
    group = parser.add_argument_group("profiling")
    group.add_argument(
        "--profile", action="store_true", help="run torch's profiler on a few steps of the training"
    )
    group.add_argument(
        "--nsight",
        action="store_true",
        help="the same with the CUDA profiler: nsys profile python … --nsight",
    )


@public("my_utils.profiling.decorator")
class ProfilerOptions(TypedDict):
    """What the command line decides."""

    enabled: bool
    nsight_enabled: bool


def profiler_options(args: argparse.Namespace) -> ProfilerOptions:
    """Keywords for `profiler` from arguments that `add_profiler_args` added: either flag enables
    it."""
    return {"enabled": args.profile or args.nsight, "nsight_enabled": args.nsight}


# --- what is decorated ---
#
# What takes the place of the user's function has no state but Settings, and the rest of this module
# by its names: cloudpickle sends it by value when the user's function is in __main__.


def _decorated(function: Any, settings: Settings) -> Any:
    scope = functools.partial(_scope, settings)
    wrapper = decorate(function, scope, decorator="@profiler(...)")
    return function if settings.enabled is False else wrapper


def _scope(
    settings: Settings, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Scope:
    """Of one call: a run, or nothing where it is off."""
    enabled = settings.enabled
    if not (enabled(*args, **kwargs) if callable(enabled) else enabled):
        return Scope()
    name = getattr(function, "__qualname__", type(function).__name__).rsplit("<locals>.", 1)[-1]
    outer = current.get()
    nested = outer is not None and outer.live
    if outer is not None and nested:
        warn_once(
            f"profiler nested {name}",
            f"{name} runs unprofiled: it was called by {outer.name}, which is profiled already",
        )
    return Run(settings, name, nested=nested)
