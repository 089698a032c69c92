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
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

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
from ....core.progress import Progress
from ....core.run_files.newest import find_run, tell_how
from .channel import describe_request
from .control_file import BACKENDS, OPTIONS, Request, captures_folder
from .request import WAIT_S, request_capture, wait_for_capture
from .result import Response
from .steps import survey

SCHEMA_VERSION = 1

EXIT_FINE = 0
EXIT_NOBODY = 1
EXIT_USAGE = 2
EXIT_FAILED = 3

_STATUSES = """\
0  the request was written; with --wait: all ranks are done
1  none of the ranks that are asked runs
2  wrong arguments, or LOGS cannot be read or written to
3  a rank is not there; with --wait: or it failed, or did not answer in time
"""


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
    _add_windows(chosen)
    _add_begin(chosen)
    _add_contents(chosen)
    chosen.add_argument(
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


def _add_windows(chosen: CommandParser) -> None:
    """Which steps of which ranks are captured, and how."""
    add = chosen.add_argument
    add_logs(chosen, several=False, text="log directory of the job")
    add(
        "--store",
        metavar="HOST:PORT",
        help="send the request through the job's store; its ranks must listen",
    )
    add_ranks(chosen)
    add("--steps", type=int, default=1, metavar="N", help="number of steps (default: 1)")
    add("--every", type=int, metavar="N",
        help="begin at --first-step, or any number of N steps after it")  # fmt: skip
    add("--times", type=int, default=1, metavar="N",
        help="with --every: capture so often (default: 1)")  # fmt: skip
    add("--backend", choices=BACKENDS, default="torch", help="the profiler (default: torch)")
    add(
        "--options",
        type=_list,
        default=[],
        metavar="LIST",
        help=f"options of torch's profiler: {', '.join(OPTIONS)}",
    )


def _add_begin(chosen: CommandParser) -> None:
    """When the first window begins."""
    when = chosen.add_mutually_exclusive_group()
    when.add_argument(
        "--first-step", type=int, metavar="N", help="the first step (default: one just ahead)"
    )
    when.add_argument("--now", action="store_true", help="start each rank at its next step")
    when.add_argument(
        "--at-start",
        action="store_true",
        help="as --now, and processes that start later at their first step",
    )
    chosen.add_argument(
        "--lead",
        type=_positive,
        metavar="S",
        help="seconds until the first step (1.5; other hosts: 6)",
    )


def _add_contents(chosen: CommandParser) -> None:
    """Where the windows go, and what else can be captured."""
    add = chosen.add_argument
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
        every=arguments.every,
        times=arguments.times,
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
    if not found:
        fail("capture", f"{arguments.logs}: no rank was there within {arguments.wait:g} s")
    fine = bool(found) and all(response["state"] == "done" for response in found.values())
    return EXIT_FINE if fine else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
