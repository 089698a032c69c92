"""Trains a small GPT on two ranks, and shows where the time goes.

    my_utils demo [-o DIR] [--steps N] [--ranks N] [--balance]

Two processes (with GPUs: one a GPU, at least two) train on the source text of Python's standard
library, with every stage of a step timed. Then it prints the table of stages and what the ranks
wait for, and writes into DIR (default `demo_output`):

    trace.pftrace, trace.json   the trace of all ranks, in Perfetto's format and in Chrome's
    timeline.png                two steps as a picture
    logs/                       the profile CSVs, text logs and reports of the run

Works offline, takes about 25 seconds on two cores. The training itself is in `demo_gpt.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..analysis.replay.inputs import verdict_of
from ..core.command_line import (
    CommandParser,
    add_output,
    fail,
    parser,
    run_cli,
)
from ..core.process_end import status_text
from ..core.units import bytes_text
from ..trace.timeline import find_csvs, plot_timeline, read_spans

MARK = ".my_utils_demo"  # in the logs of demos, which a later one may remove
PATTERNS = ("profile_rank_*.csv", "rank_*", "report_rank_*")
WARM_UP = 1  # steps at the start that the means leave out


class DemoError(Exception):
    """The run failed; the message says which rank, how, and what it wrote last."""


def default_ranks() -> int:
    """Two, or one a GPU where there are more."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 2
    import torch  # takes seconds, so only where there may be a GPU

    return max(2, torch.cuda.device_count())


def clear_logs(log_dir: Path) -> None:
    """Removes what an earlier demo left, so that the trace shows one run; DemoError if another
    run has written."""
    mark = log_dir / MARK
    found = [path for pattern in PATTERNS for path in log_dir.glob(pattern)]
    if found and not mark.exists():
        raise DemoError(f"{log_dir} holds the files of another run; name another directory: --out")
    mark.touch()
    for path in found:
        path.unlink()


def run_ranks(log_dir: Path, ranks: int, steps: int, balance: bool) -> None:
    """Runs the training, a process a rank, to its end.

    Raises DemoError when a rank fails; the others are then ended too.
    """
    # Gloo resolves the host's own name, which may fail. On one machine loopback is enough.
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    with tempfile.TemporaryDirectory(prefix="my_utils_demo_") as scratch:
        command = [sys.executable, "-m", "my_utils.cli.demo_gpt", "--log-dir", str(log_dir)]
        command += ["--store", f"{scratch}/store", "--ranks", str(ranks), "--steps", str(steps)]
        command += ["--balance"] if balance else []
        with contextlib.ExitStack() as stack:
            workers = []
            for rank in range(ranks):
                errors = stack.enter_context(open(f"{scratch}/stderr_{rank}", "w+b"))
                worker = subprocess.Popen(
                    [*command, "--rank", str(rank)], stderr=errors, env=environment
                )
                stack.callback(_end, worker)
                workers.append(worker)
            _wait(workers)
        failed = [rank for rank, worker in enumerate(workers) if worker.returncode]
        if failed:  # one killed by a signal comes first: its death raises in the others
            first = min(failed, key=lambda rank: workers[rank].returncode)
            raise DemoError(_describe(first, workers[first].returncode, Path(scratch)))


def _wait(workers: list[subprocess.Popen[bytes]]) -> None:
    """Returns when all have ended well, or soon after one has not."""
    while None in [worker.poll() for worker in workers]:
        if any(worker.returncode for worker in workers):
            return
        time.sleep(0.02)


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.kill()
        worker.wait()
        worker.returncode = 0  # our doing, not its failure


def _describe(rank: int, code: int, scratch: Path) -> str:
    lines = (scratch / f"stderr_{rank}").read_text(errors="replace").splitlines()
    said = "".join(f"\n  {line}" for line in lines[-15:])
    return f"rank {rank} ended {status_text(code)}" + (f"; its last words:{said}" if said else "")


def write_traces(log_dir: Path, out: Path) -> list[Path]:
    """Merges the CSVs of all ranks into one trace, in both formats."""
    from ..trace import csv2trace

    traces = [out / "trace.pftrace", out / "trace.json"]
    for trace, kind in zip(traces, ("perfetto", "json"), strict=True):
        status = csv2trace.main([str(log_dir), "-o", str(trace), "--format", kind, "--quiet"])
        if status:
            raise DemoError(f"csv2trace ended with status {status}")
    return traces


def who_waits(log_dir: Path) -> Iterator[str]:
    """Lines of text: what each rank computed a step and how long it was in all_reduce."""
    means = [_mean_stages_ms(path) for path in find_csvs([log_dir])]
    yield f"{'mean a step, ms':<18}{'iter':>9}{'compute':>10}{'all_reduce':>12}"
    for rank, mean in enumerate(means):
        compute = mean["forward"] + mean["backward"]
        yield f"rank {rank:<13}{mean['iter']:9.1f}{compute:10.1f}{mean['all_reduce']:12.1f}"

    waits = [mean["all_reduce"] for mean in means]
    patient, busy = waits.index(max(waits)), waits.index(min(waits))
    share = waits[patient] / means[patient]["iter"]
    yield ""
    if share - waits[busy] / means[busy]["iter"] > 0.1:
        yield f"Rank {patient} spends {share:.0%} of its time in all_reduce. It is not slow there:"
        yield f"it waits for rank {busy}, whose texts are longer. Run with --balance, which gives"
        yield "all ranks texts of like length, and compare."
    else:
        yield f"No rank waits long for another: at most {share:.0%} of a step is all_reduce."


def _mean_stages_ms(path: Path) -> dict[str, float]:
    totals: dict[str, int] = dict.fromkeys(("iter", "forward", "backward", "all_reduce"), 0)
    steps = 0
    for span in read_spans(path):
        if span.step >= WARM_UP and span.name in totals:
            totals[span.name] += span.duration_ns
            steps += span.name == "iter"
    return {name: total / max(steps, 1) / 1e6 for name, total in totals.items()}


def run(out: Path, steps: int, ranks: int, balance: bool) -> None:
    """Trains, reports, and writes the traces and the picture under `out`."""
    began = time.monotonic()
    log_dir = out / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    clear_logs(log_dir)

    print(f"training a small GPT on {ranks} ranks, {steps} steps", flush=True)
    run_ranks(log_dir, ranks, steps, balance)

    print("\nrank 0:")
    print((log_dir / "report_rank_0.txt").read_text(encoding="utf-8").rstrip())
    print()
    print("\n".join(who_waits(log_dir)))
    print(f"\nmy_utils why {log_dir}")
    print("\n".join(verdict_of(os.fspath(log_dir)).lines()))

    written = write_traces(log_dir, out)
    try:
        middle = steps // 2
        title = f"steps {middle} and {middle + 1} of the demo"
        written.append(
            plot_timeline([log_dir], out / "timeline.png", range(middle, middle + 2), title)
        )
    except ImportError:
        print("\nno timeline.png: matplotlib is missing (pip install matplotlib)")
    print(f"\nwritten in {time.monotonic() - began:.0f} s:")
    for path in written:
        print(f"  {path}  ({bytes_text(path.stat().st_size)})")
    print("\nopen the trace at https://ui.perfetto.dev (drag the file into the page), or with")
    print(f"  my_utils trace {log_dir} -o {written[0]} --open")
    print(f"a report about the run:  my_utils report {log_dir}")
    print(f"watch a running job:     my_utils live {log_dir}")


def _at_least(smallest: int) -> type[int]:
    def convert(text: str) -> int:
        value = int(text)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is less than {smallest}")
        return value

    convert.__name__ = "int"  # argparse says it in its message
    return convert  # type: ignore[return-value]


def command_parser() -> CommandParser:
    chosen = parser(
        "demo",
        "Trains a small GPT on two ranks and shows where the time goes.",
        ["my_utils demo", "my_utils demo -o /tmp/demo --steps 10 --balance"],
        statuses="0  fine\n1  a rank failed, or the results could not be written",
    )
    add = chosen.add_argument
    add_output(
        chosen, "where to write (default: %(default)s)", default="demo_output", metavar="DIR",
        folder=True, old=("--out",),
    )  # fmt: skip
    add("--steps", type=_at_least(4), default=60, metavar="N",
        help="steps to train, 4 or more (default: %(default)s)")  # fmt: skip
    add("--ranks", type=_at_least(2), metavar="N",
        help="processes (default: 2, or the number of GPUs if larger)")  # fmt: skip
    add("--balance", action="store_true",
        help="give all ranks texts of similar length, so that none waits")  # fmt: skip
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = command_parser().parse_args(argv)
    try:
        run(Path(args.output), args.steps, args.ranks or default_ranks(), args.balance)
    except BrokenPipeError:
        raise
    except (DemoError, OSError) as error:
        return fail("demo", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
