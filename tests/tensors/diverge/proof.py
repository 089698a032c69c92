"""The proof of `diverge`: faults planted into generated models, under wrappers.

    python -m tests.tensors.diverge.proof [--runs 2] [--keep FILE] [--out FILE]

Each model is recorded as it is, then once more with a fault and a wrapper, and the two recordings
are compared. With --keep, what is done stays in FILE (a JSON line a comparison), and another call
goes on from there. With --out it writes them in Markdown. `--families`,
`--faults` and `--wrappers` (regular expressions) take a part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from my_utils.module_hook import ForwardTraceRecorder, Recording
from my_utils.tensors import diverge
from tests.tensors.diverge.faults import FAULTS, Case, Right
from tests.tensors.diverge.models import BLOCKS, FAMILIES, make

__all__ = ["WRAPPERS", "Outcome", "attempt", "page", "trials"]

WRAPPERS = ("plain", "DDP", "FSDP2", "compile", "checkpointing", "part of a larger model")
WANTED = 0.99

# Cells without a sense, and why.
NONSENSE = {
    ("gradient", "compile"): "gradients of calls are not recorded inside a compiled graph",
}

PAGE = """## Where `diverge` finds the difference

{made}, by `python -m tests.tensors.diverge.proof`. The rule is in
[Find the first difference](correctness/find-the-first-difference.md#the-rule).

The models are small and need no downloads: seven families of transformers and random graphs of
modules (`tests/tensors/diverge/models.py`). Each is recorded unchanged, and again inside a wrapper
with a fault (`tests/tensors/diverge/faults.py`) in a module that the number of the case selects.
Then the two recordings are compared as a user compares them. DDP and FSDP2 have one rank here.
Compiled models have one layer and the backend `eager`. Mamba uses another algorithm when it is
compiled, so both sides are compiled there.

An answer is right if it names the planted cause and module, or, for a rename alone, if it finds no
difference. A dash means that the combination does not exist or was not run.

{total}

{tables}"""


@dataclass(frozen=True)
class Outcome:
    """One comparison. verdict: "right", "wrong", "not decided", or "empty" where the model has no
    place for the fault. said: what was named."""

    family: str
    fault: str
    wrapper: str
    number: int
    verdict: str
    said: str = ""
    wanted: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.family, self.fault, self.wrapper, self.number


class Larger(nn.Module):
    """Another model around it, with weights of its own before and behind."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.net = net
        self.behind = nn.Linear(1, 1)

    def forward(self, **batch: torch.Tensor) -> Any:
        start = self.before(torch.ones(1, 4)).sum()
        result = _tensor(self.net(**batch))
        return result.sum() + self.behind(start.reshape(1, 1)).sum()


def _tensor(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    found: torch.Tensor = output.logits
    return found


def wrapped(model: nn.Module, wrapper: str, family: str) -> nn.Module:
    if wrapper == "DDP":
        return nn.parallel.DistributedDataParallel(model)
    if wrapper == "compile":
        torch._dynamo.reset()
        return torch.compile(model, backend="eager")  # type: ignore[return-value]
    if wrapper == "part of a larger model":
        torch.manual_seed(0)
        return Larger(model)
    blocks = [_blocks(model, name) for name in BLOCKS[family]]
    if wrapper == "checkpointing":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for part in blocks:
            for place, block in enumerate(part):
                part[place] = checkpoint_wrapper(block)
    if wrapper == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        for part in blocks:
            for block in part:
                fully_shard(block)
        fully_shard(model)
    return model


def _blocks(model: nn.Module, name: str) -> nn.ModuleList:
    """By the code's own names, which renamed modules still have as attributes."""
    found: Any = model
    for word in name.split("."):
        found = getattr(found, word)
    assert isinstance(found, nn.ModuleList)
    return found


def record(
    model: nn.Module, batch: dict[str, torch.Tensor], backward: bool, compiled: bool
) -> Recording:
    torch.manual_seed(7)
    with ForwardTraceRecorder(
        model, record_param_md5=True, record_buffer_md5=not compiled, stats=True,
        record_grads=backward, compiled="op" if compiled else "eager",
    ) as recorder:  # fmt: skip
        output = model(**batch)
        if backward:
            _tensor(output).square().mean().backward()
    return recorder.snapshot()


def attempt(family: str, fault: str, wrapper: str, number: int) -> Outcome:
    """One comparison."""
    key = (family, fault, wrapper, number)
    if (fault, wrapper) in NONSENSE:
        return Outcome(*key, "empty", NONSENSE[fault, wrapper])
    layers = 1 if wrapper == "compile" else 2
    backward = fault == "gradient"
    model, batch = make(family, number, layers)
    around = wrapper if family == "Mamba" and wrapper == "compile" else "plain"
    if backward and wrapper == "part of a larger model":
        around = wrapper  # the loss is another one
    sound = record(make(family, number, layers)[0], batch, backward, False)
    other, other_batch = make(family, number, layers)
    choose = random.Random(f"{key}")
    right = FAULTS[fault](Case(other, other_batch, sound, choose))
    if right is None:
        return Outcome(*key, "empty", "the model has no such module")
    if around != "plain":
        sound = record(wrapped(model, around, family), batch, backward, around == "compile")
    try:
        faulty = record(
            wrapped(other, wrapper, family), other_batch, backward, wrapper == "compile"
        )
    except RuntimeError as error:
        if "modified inplace" in str(error):
            return Outcome(*key, "empty", "torch refuses to write to that view")
        raise
    report = diverge.compare_recordings(sound, faulty)
    verdict, said = judge(report, right, around)
    return Outcome(*key, verdict, said, f"{right.cause} at {right.module!r}")


def judge(report: diverge.RankReport, right: Right, around: str) -> tuple[str, str]:
    found = report.difference
    if found is None:
        said = f"{report.status} ({report.reason})"
        return ("right" if right.cause is None and report.status == "same" else "wrong"), said
    name = None if found.call is None else _as_planted(found.call.name, around)
    said = f"{found.cause.value} at {name!r}: {found.text[:300]}"
    if found.cause is diverge.Cause.UNDECIDED:
        return ("wrong" if right.cause is None else "not decided"), said
    is_right = found.cause.value == right.cause and name == right.module
    return ("right" if is_right else "wrong"), said


def _as_planted(name: str, around: str) -> str:
    return name.removeprefix("net.") if around == "part of a larger model" else name


# --- all of them ---


def trials(options: argparse.Namespace) -> list[tuple[str, str, str, int]]:
    return [
        (family, fault, wrapper, number)
        for wrapper in WRAPPERS if re.search(options.wrappers, wrapper)
        for family in FAMILIES if re.search(options.families, family)
        for fault in FAULTS if re.search(options.faults, fault)
        for number in range(options.runs * (1 if FAMILIES[family] else options.graphs))
    ]  # fmt: skip


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Of this process alone, for DDP and FSDP2."""
    if dist.is_initialized():
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(  # type: ignore[attr-defined]
            os.path.join(folder, "store"), 1
        )
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def run(todo: Sequence[tuple[str, str, str, int]], keep: Path | None) -> list[Outcome]:
    done = {outcome.key: outcome for outcome in _kept(keep)}
    with process_group(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, key in enumerate(todo):
            if key in done:
                continue
            try:
                done[key] = attempt(*key)
            except Exception as error:  # a model that cannot run with a fault is not an answer
                done[key] = Outcome(*key, "failed", f"{type(error).__name__}: {error}"[:300])
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(asdict(done[key])) + "\n")
            if place % 50 == 0:
                print(f"{place} of {len(todo)} comparisons", file=sys.stderr, flush=True)
    return [done[key] for key in todo if key in done]


def _kept(keep: Path | None) -> list[Outcome]:
    if keep is None or not keep.exists():
        return []
    return [Outcome(**json.loads(line)) for line in keep.read_text().splitlines()]


# --- the page ---


def page(outcomes: Sequence[Outcome]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    made = f"Made on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} at commit {commit}"
    counts = Counter(one.verdict for one in outcomes)
    judged = [one for one in outcomes if one.verdict != "empty"]
    total = (
        f"**{len(judged):,} comparisons: {counts['right']:,} right "
        f"({counts['right'] / max(1, len(judged)):.1%}), {counts['not decided']} not decided, "
        f"{counts['wrong']} wrong, {counts['failed']} that could not run.**"
    )
    parts = [
        "### By fault and wrapper", _table(judged, "fault", FAULTS, "wrapper", WRAPPERS),
        "### By model and wrapper", _table(judged, "family", FAMILIES, "wrapper", WRAPPERS),
        "### Empty cells", _empty(outcomes),
    ]  # fmt: skip
    odd = [one for one in judged if one.verdict != "right"]
    if odd:
        parts += ["### What was not right", "\n".join(_line(one) for one in odd)]
    return PAGE.format(made=made, total=total, tables="\n\n".join(parts) + "\n")


def _table(outcomes: Sequence[Outcome], row: str, rows: Any, column: str, columns: Any) -> str:
    cells: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        cells[getattr(one, row), getattr(one, column)].append(one)
    lines = [f"| | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for name in rows:
        shown = [_share(cells.get((name, other), [])) for other in columns]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _share(cell: Sequence[Outcome]) -> str:
    if not cell:
        return "–"
    return f"{sum(one.verdict == 'right' for one in cell)}/{len(cell)}"


def _empty(outcomes: Sequence[Outcome]) -> str:
    cells: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in outcomes:
        if one.verdict == "empty":
            cells[one.fault, one.said].add(f"{one.family} × {one.wrapper}")
    lines = [
        f"- {fault}: {why} ({_cells_named(names)})" for (fault, why), names in sorted(cells.items())
    ]
    return "\n".join(lines) or "None."


def _cells_named(names: set[str]) -> str:
    families = {name.split(" × ")[0] for name in names}
    wrappers = {name.split(" × ")[1] for name in names}
    both = len(families) * len(wrappers) == len(names)
    listed = [
        "all wrappers" if wrappers == set(WRAPPERS) else ", ".join(sorted(wrappers)),
        "all models" if families == set(FAMILIES) else ", ".join(sorted(families)),
    ]
    return "; ".join(reversed(listed)) if both else ", ".join(sorted(names))


def _line(one: Outcome) -> str:
    return (
        f"- {one.verdict}: {one.fault}, {one.family}, {one.wrapper}, {one.number}: wanted "
        f"{one.wanted}; said {one.said}"
    )


def command(argv: Sequence[str] | None = None) -> argparse.Namespace:
    chosen = argparse.ArgumentParser(description=__doc__)
    chosen.add_argument("--runs", type=int, default=2)
    chosen.add_argument("--graphs", type=int, default=2, help="random graphs for each run")
    chosen.add_argument("--families", default=".")
    chosen.add_argument("--faults", default=".")
    chosen.add_argument("--wrappers", default=".")
    chosen.add_argument("--keep", type=Path)
    chosen.add_argument("--out", type=Path)
    return chosen.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = command(argv)
    outcomes = run(trials(options), options.keep)
    text = page(outcomes)
    if options.out is not None:
        options.out.write_text(text)
    else:
        print(text)
    return int(any(one.verdict in ("wrong", "failed") for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
