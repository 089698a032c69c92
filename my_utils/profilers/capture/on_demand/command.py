"""Captures a few steps of a running job, without a restart and without code in it.

    my_utils capture LOG_DIR --ranks 3,7 --steps 2 --backend torch --wait

asks ranks 3 and 7 of the job that logs to LOG_DIR for a trace of two steps. The job needs a
`MyTimer` with `set_step`, and `GlobalLogger().setup(LOG_DIR)`; it polls for requests twice a
second, on a separate thread. All ranks begin at the same step. The traces are
`LOG_DIR/captures/<id>__rank<rank>.json`.

`MY_UTILS_CAPTURE=0` in the environment of the job turns it off. Only requests by the user of the
job, or by root, are obeyed. `python -m my_utils capture` is the same command.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....core.arguments import check_int, check_seconds
from ....core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_quiet,
    add_ranks,
    fail,
    parser,
    run_cli,
    say,
)
from ....core.lazy_modules import lazy_module
from ....core.progress import Progress
from ....core.ranges import as_ranges, ranges_text
from ....core.ranks import check_ranks
from ....core.run_files.newest import find_run, tell_how
from . import store as capture_store
from .control_file import BACKENDS, OPTIONS, Request, add_request, captures_folder, new_id
from .result import Response
from .steps import step_ahead, survey
from .wait import WAIT_S, job_log_dir, wait_for_capture

if TYPE_CHECKING:
    from torch._C import _distributed_c10d as _c10d

    from .. import controller as _controller
else:
    _c10d = lazy_module("torch._C._distributed_c10d")
    _controller = lazy_module("my_utils.profilers.capture.controller")

SCHEMA_VERSION = 1

EXIT_FINE = 0
EXIT_NOBODY = 1
EXIT_USAGE = 2
EXIT_FAILED = 3

ANSWER_S = 10.0  # for a rank to respond with its step

_STATUSES = """\
0  the request was written; with --wait: all ranks are done
1  none of the ranks that are asked runs
2  wrong arguments, or LOGS cannot be read or written to
3  a rank is not there; with --wait: or it failed, or did not answer in time
"""


def request_capture(
    log_dir: str | os.PathLike[str] | None = None,
    *,
    ranks: int | Collection[int] | None = None,
    steps: int = 1,
    first_step: int | str = "next",
    backend: str = "torch",
    options: Collection[str] = (),
    output: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    window: Mapping[str, Any] | None = None,
    at_start: bool = False,
    lead_s: float | None = None,
    store: _c10d.Store | str | None = None,
) -> Request:
    """Asks ranks of a running job for a capture window; returns the request, with its id.

    log_dir: of the job; that of this process by default.
    ranks: which are asked; all by default.
    steps: the window closes that many calls of set_step after it opened. A call with the same
        number as the one before does not count.
    first_step: the number of the first step; "next": a step ahead of all these ranks, the same
        for all, which takes about a second to find; "now": each rank's next step, which may not be
        the same.
    backend: "torch" (torch's profiler, a Chrome trace), "cuda" (cudaProfilerStart and Stop, for
        nsys and ncu), "memory" (the CUDA allocator's history) or "none".
    options: for torch's profiler, of "profile_memory", "record_shapes", "with_flops",
        "with_modules" and "with_stack".
    output: an absolute path for what is captured, on the machines of the ranks;
        `<log_dir>/captures` by default.
    tag: only steps of timers with this tag count. By default those of the timer that comes first
        to the step.
    window: fields of a `CaptureSpec` but its id. The window is then armed at the controllers that
        the job registered, with their backends, and cancelled when the steps are over. It opens
        once in each of the steps, or only once if it names a start_iter.
    at_start: for jobs that begin later. Every process that begins while the request is among the
        newest 16 obeys it, and "next" means "now".
    lead_s: seconds within which all ranks have read the request; 1.5 by default, and 6 where ranks
        are on other machines. "next" is further ahead than that.
    store: ask through torch's store instead of a file; the ranks must `listen`. A torch store,
        "HOST:PORT" (MASTER_ADDR and MASTER_PORT of the job), or "default" for that of this process.
        Then log_dir is not used.

    The request is written to `<log_dir>/my_utils.control.json`, and takes effect at a `set_step`
    about half a second later. Raises TypeError and ValueError for wrong arguments, OSError when the
    file cannot be written, ConnectionError when no store is there or nobody listens. Thread-safe.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     request = request_capture(folder, ranks=[3, 7], steps=2, first_step=100)
    >>> request.first_step, request.steps, request.ranks
    (100, 2, ((3, 3), (7, 7)))
    """
    chosen = check_ranks("ranks", ranks)
    if chosen is not None and not chosen:
        raise ValueError("ranks must name at least one rank, not none")
    if isinstance(first_step, str) and first_step not in ("next", "now"):
        raise ValueError(f"first_step must be an int, 'next' or 'now', not {first_step!r}")
    if isinstance(options, str) or not isinstance(options, Collection):
        raise TypeError(f"options must be a list of str, not {options!r:.100}")
    if lead_s is not None:
        check_seconds("lead_s", lead_s)
    if store is not None and at_start:
        raise ValueError("at_start must be False for requests by a store")
    folder = None if store is not None else job_log_dir(log_dir)
    first = None if isinstance(first_step, str) else check_int("first_step", first_step)
    steps = check_int("steps", steps)
    request = Request(
        id=new_id(),
        ranks=None if chosen is None else as_ranges(chosen),
        first_step=first,
        steps=steps,
        backend=backend,
        options=tuple(sorted(options)),
        output_dir=None if output is None else os.fspath(output),
        tag=tag,
        window=None if window is None else _checked_window(window),
        at_start=at_start,
        time=time.time(),
    )
    if folder is None:
        assert store is not None
        return _ask_by_store(store, request, first_step == "next", lead_s)
    if first_step == "next" and not at_start:
        asked = survey(os.fspath(folder), chosen).asked
        first = step_ahead(os.fspath(folder), asked, lead_s)
        request = dataclasses.replace(request, first_step=first)
    add_request(folder, request)
    return request


def _ask_by_store(
    store: _c10d.Store | str, request: Request, find_step: bool, lead_s: float | None
) -> Request:
    own = capture_store.open_store(store)
    world_size = capture_store.world_size(own)
    if world_size is None:
        raise ConnectionError(
            "no rank listens to this store; see my_utils.profilers.capture.listen"
        )
    if request.ranks is None:
        request = dataclasses.replace(request, ranks=((0, world_size - 1),))
    if find_step:
        ranks = [rank for rank in request.rank_numbers() if rank < world_size]
        first = capture_store.step_ahead(own, request.id, ranks, lead_s, ANSWER_S)
        request = dataclasses.replace(request, first_step=first)
    capture_store.ask(own, request)
    return request


def _checked_window(window: Mapping[str, Any]) -> dict[str, Any]:
    from ..spec import CaptureSpec

    if not isinstance(window, Mapping):
        raise TypeError(f"window must be a mapping, not {window!r:.100}")
    if "window_id" in window:
        raise TypeError("window must not have a window_id: it is that of the request")
    CaptureSpec.from_mapping({**window, "window_id": "w"})
    plain: dict[str, Any] = json.loads(json.dumps(dict(window)))
    return plain


def listen(store: _c10d.Store | str = "default") -> None:
    """Lets requests through torch's store reach this rank: for ranks that share no log directory.

    store: a torch store, or "default" for that of `init_process_group`. Call this on every rank,
        after that. MY_UTILS_CAPTURE=store in the environment of the job does the same at the first
        step.

    A separate thread polls the store twice a second, on a separate connection. Whoever can reach
    the store can send requests, and can also change all that torch keeps there. A second call does
    nothing. The thread ends with the process, or with the store.
    """
    from . import job

    job.listen(store)


def register(controller: _controller.CaptureController) -> None:
    """Lets requests with a `window` reach a `CaptureController` of this process.

    It is held by a weak reference. Registering twice changes nothing.

    >>> from my_utils.profiling.backends import NoOpBackend
    >>> from my_utils.profiling.capture_controller import CaptureController
    >>> controller = CaptureController(NoOpBackend())
    >>> register(controller)
    """
    from .window import registered

    if not isinstance(controller, _controller.CaptureController):
        raise TypeError(f"controller must be a CaptureController, not {controller!r:.100}")
    registered.add(controller)


# --- the command line ---


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def command_parser() -> CommandParser:
    chosen = parser(
        "capture",
        "Captures a few steps of a running job.",
        [
            "my_utils capture --wait",
            "my_utils capture logs --ranks 0,3-5 --steps 2 --options with_stack --wait 60",
            "my_utils capture logs --first-step 1000 --backend memory --json",
        ],
        statuses=_STATUSES,
    )
    add = chosen.add_argument
    add_logs(chosen, several=False, text="log directory of the job")
    add(
        "--store",
        metavar="HOST:PORT",
        help="send the request through the job's store; its ranks must listen",
    )
    add_ranks(chosen)
    add("--steps", type=int, default=1, metavar="N", help="number of steps (default: 1)")
    add("--backend", choices=BACKENDS, default="torch", help="the profiler (default: torch)")
    add(
        "--options",
        type=_list,
        default=[],
        metavar="LIST",
        help=f"options of torch's profiler: {', '.join(OPTIONS)}",
    )
    when = chosen.add_mutually_exclusive_group()
    when.add_argument(
        "--first-step", type=int, metavar="N", help="the first step (default: one just ahead)"
    )
    when.add_argument("--now", action="store_true", help="start each rank at its next step")
    when.add_argument(
        "--at-start", action="store_true", help="also capture processes that start later"
    )
    add(
        "--lead",
        type=_positive,
        metavar="S",
        help="seconds until the first step (1.5; other hosts: 6)",
    )
    add_output(
        chosen, "folder, absolute, on the ranks' machines (default: LOGS/captures)",
        metavar="DIR", folder=True, old=("--out", "--output-dir"),
    )  # fmt: skip
    add(
        "--stacks",
        type=_positive,
        metavar="S",
        help="sample Python stacks for S seconds, by stage, instead of a window",
    )
    add("--tag", help="tag of the timer whose steps count (default: the first timer)")
    add(
        "--profile-names",
        type=_list,
        metavar="LIST",
        help="capture one call of these functions in each step, with the job's CaptureController",
    )
    add("--window", type=_json_object, metavar="JSON", help="the same, with all fields of a window")
    add(
        "--wait",
        nargs="?",
        type=_positive,
        const=WAIT_S,
        metavar="S",
        help=f"wait until the ranks are done, at most S seconds ({WAIT_S:g})",
    )
    add_json(chosen, "print one JSON object at the end")
    add_quiet(chosen, "no progress, and only ranks that cannot answer")
    return chosen


def describe_request(request: Request) -> str:
    """What was asked for, in one line for people."""
    ranks = "all ranks" if request.ranks is None else f"ranks {ranges_text(request.ranks)}"
    first, last = request.first_step, None
    if first is None:
        steps = f"the next {request.steps} steps" if request.steps > 1 else "the next step"
    else:
        last = first + request.steps - 1
        steps = f"step {first}" if last == first else f"steps {first} to {last}"
    return f"capture {request.id}: {steps} of {ranks}, {request.backend}"


def _describe_response(rank: int, response: Response) -> str:
    text = f"rank {rank}: {response['state']}"
    if response["state"] == "open":
        text += f" at step {response.get('opened_at_step')}"
    details = [str(response.get("reason") or ""), *map(str, response.get("files") or [])]
    return ": ".join(filter(None, [text, "; ".join(filter(None, details))]))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    arguments = chosen.parse_args(argv)
    try:
        return _run(arguments)
    except BrokenPipeError:
        raise
    except (TypeError, ValueError) as error:
        chosen.error(str(error))
    except OSError as error:
        place = error.filename or arguments.store or arguments.logs
        return fail("capture", f"{place}: {error.strerror or error}", EXIT_USAGE)


def _progress(arguments: argparse.Namespace) -> Progress:
    return Progress("capture", quiet=arguments.quiet, no_color=arguments.no_color, ticking=True)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.store is None:
        found = find_run(arguments.logs)
        if not arguments.quiet:
            tell_how("capture", [found])
        arguments.logs = found.path
    elif arguments.logs is not None:
        raise ValueError("give either LOGS or --store HOST:PORT")
    if arguments.stacks is not None:
        return _profile(arguments)
    with _progress(arguments) as shown:
        shown.phase("asking the ranks for their steps")
        missing = _missing(arguments)
        if missing is None:
            return EXIT_NOBODY
        request = _request(arguments)
    is_text = not (arguments.json or arguments.quiet)
    if arguments.json and arguments.wait is None:
        print(json.dumps({"version": SCHEMA_VERSION, "request": request.as_data()}))
    elif is_text:
        print(describe_request(request), flush=True)
    if arguments.wait is None:
        for rank, reason in missing.items():
            say("capture", f"rank {rank}: {reason}")
        if is_text and arguments.logs is not None:
            print(f"the ranks answer in {captures_folder(arguments.logs)}; --wait waits for them")
        return EXIT_FAILED if missing else EXIT_FINE
    return _wait(arguments, request)


# By name: stacks are a layer above captures, since they are joined with the stages of a run.
_STACKS = "my_utils.analysis.process_stacks.command"


def _profile(arguments: argparse.Namespace) -> int:
    if arguments.store is not None:
        raise ValueError("--stacks needs LOGS: stacks cannot be requested through a store")
    with _progress(arguments) as shown:
        shown.phase(f"sampling stacks for {arguments.stacks:g} s")
        status: int = importlib.import_module(_STACKS).profile_job(
            arguments.logs,
            arguments.stacks,
            ranks=arguments.ranks,
            output=arguments.output,
            as_json=arguments.json,
            quiet=arguments.quiet,
        )
    return status


def _request(arguments: argparse.Namespace) -> Request:
    first: int | str = "now" if arguments.now or arguments.at_start else "next"
    window: dict[str, Any] | None = arguments.window
    if arguments.profile_names:
        window = {"start_profile_names": arguments.profile_names, **(window or {})}
    return request_capture(
        arguments.logs,
        ranks=arguments.ranks,
        steps=arguments.steps,
        first_step=first if arguments.first_step is None else arguments.first_step,
        backend=arguments.backend,
        options=arguments.options,
        output=arguments.output,
        tag=arguments.tag,
        window=window,
        at_start=arguments.at_start,
        lead_s=arguments.lead,
        store=arguments.store,
    )


def _missing(arguments: argparse.Namespace) -> dict[int, str] | None:
    """Why some of the ranks cannot respond; None, with a message, when none of them can."""
    if arguments.store is not None or arguments.at_start:
        if arguments.store is None:
            os.scandir(arguments.logs).close()  # OSError
        return {}
    there = survey(arguments.logs, arguments.ranks)
    missing = {rank: there.why_not(rank) for rank in there.asked if rank not in there.alive}
    if there.alive and arguments.ranks is None:
        return {rank: why for rank, why in missing.items() if there.ranks[rank].state != "closed"}
    if there.alive:
        return missing
    for rank, reason in missing.items():
        say("capture", f"rank {rank}: {reason}")
    fail("capture", f"{arguments.logs}: none of the ranks that are asked runs")
    return None


def _wait(arguments: argparse.Namespace, request: Request) -> int:
    def show(rank: int, response: Response) -> None:
        if not (arguments.json or arguments.quiet):
            shown.print(_describe_response(rank, response))

    with _progress(arguments) as shown:
        shown.phase("waiting for the ranks")
        found = wait_for_capture(
            request, arguments.logs, store=arguments.store, timeout_s=arguments.wait, on_change=show
        )
    if arguments.json:
        data = {"version": SCHEMA_VERSION, "request": request.as_data(), "answers": found}
        print(json.dumps(data))
    fine = bool(found) and all(response["state"] == "done" for response in found.values())
    return EXIT_FINE if fine else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
