"""The text of a verdict: at most twelve lines, the answer first."""

from __future__ import annotations

import functools
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.ranges import ranks_text
from ...core.units import bytes_text, count_text, figure_text, ms_text, percent_text
from .kinds import CAUSES_PAGE, PAGES, UNTIMED, Kind, is_costly
from .last_in_backward_text import INSIDE_PAGE, last_lines, last_short
from .next_steps import (
    change_for,
    is_collection,
    next_command,
    page_path,
    steps_with_a_slow_one,
    timeline_command,
)
from .utilisation import utilisation_text

if TYPE_CHECKING:
    from .result import Finding, Verdict

LINES_MAX = 12
LEAST_WIDTH, MOST_WIDTH = 60, 120
ALSO_MAX = 3
SLOWER_MAX = 2
RANGES_SHOWN = 8
NOTES_SHOWN = 2
GAP = "  ·  "

_ranks = functools.partial(ranks_text, most=RANGES_SHOWN)
_percent = functools.partial(percent_text, digits=0)

HEADS: dict[Kind, str] = {
    "input": "BOUND BY INPUT",
    "h2d": "BOUND BY COPIES TO THE DEVICE",
    "launch": "BOUND BY LAUNCHING KERNELS",
    "compute": "BOUND BY COMPUTE",
    "communication": "BOUND BY COMMUNICATION",
    "straggler": "WAITING FOR",
    "moving imbalance": "IMBALANCE THAT MOVES FROM RANK TO RANK",
    "optimizer": "BOUND BY THE OPTIMIZER",
    "checkpoint": "BOUND BY CHECKPOINTS",
    "eval": "BOUND BY EVALUATION",
    "host hiccups": "HOST HICCUPS",
    "short of cores": "SHORT OF CORES",
    "untimed": "BOUND BY WHAT NO STAGE TIMES",
    "memory grows": "MEMORY GROWS",
    "throughput falls": "THROUGHPUT FALLS",
    "slower since": "SLOWER SINCE",
    "not judged inside": "NOT JUDGED INSIDE",
    "warm-up": "WARM-UP",
    "slower rank": "SLOWER THAN THE OTHERS",
}

GPU_ERRORS_SHOWN = 2

CAUSES = {
    "gc0": "garbage collection, generation 0",
    "gc1": "garbage collection, generation 1",
    "gc2": "garbage collection, generation 2",
    "delay": "waiting for a core",
    "quota": "waiting for the quota of its cgroup",
    "own": "own work",
    "stopped": "being stopped, by a signal or with its machine",
    "gil": "waiting for the GIL",
    "storage": "waiting for storage",
    "page": "waiting for pages of its memory to be read from a disk",
    "memory": "lack of memory in its cgroup",
    "other": "sleeping, or waiting for another thread, a process or the network",
    "wait": "waiting for a disk, a lock, or stopped",
}

WORKERS_DO = {
    "runs": ("runs", "run"),
    "delay": ("waits for a core", "wait for a core"),
    "storage": ("waits for storage", "wait for storage"),
    "waits": (
        "sleeps, or waits for a lock or the network",
        "sleep, or wait for locks or the network",
    ),
}

_LIKE_OTHERS: dict[Kind, str] = {
    "input": "loaded like the others",
    "h2d": "copied like the others",
    "checkpoint": "did not wait for checkpoints",
    "eval": "did not evaluate",
}


def terminal_width() -> int:
    """For `terminal_lines`: that of the terminal, within limits."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, LEAST_WIDTH), MOST_WIDTH)


def terminal_lines(verdict: Verdict, width: int) -> list[str]:
    foot = list(_foot(verdict))
    head = ending_lines(verdict, width)
    left = LINES_MAX - len(foot) - len(head)
    if verdict.status == "not judged":
        lines = list(_not_judged(verdict, width))[:left]
    else:
        lines = [part for line in _judged(verdict, width) for part in wrapped(line, width)][:left]
    return head + lines + [_cut(line, width) for line in foot]


def shortened(lines: list[str], most: int) -> list[str]:
    """The lines of a verdict without those before its foot, where there are too many. The foot says
    what was lost and what was judged: it is what stands below the findings at the left margin.

    >>> shortened(["head", "  next", "also: a", "also: b", "lost", "not timed", "judged"], 5)
    ['head', '  next', 'lost', 'not timed', 'judged']
    """
    if len(lines) <= most:
        return lines
    found = (at for at, line in enumerate(lines) if line.startswith((" ", "also: ", "and ")))
    foot = max(found, default=0) + 1
    kept = max(most - (len(lines) - foot), 0)
    return [*lines[:kept], *lines[foot:]]


def ending_lines(verdict: Verdict, width: int) -> list[str]:
    """How the run ended, if that was not as it should."""
    return wrapped(f"ENDED EARLY: {verdict.ending}", width) if verdict.ending else []


def _visible(line: str) -> str:
    """Names come from files, so what is not printable is shown as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def wrapped(line: str, width: int) -> list[str]:
    """A command is left whole: it is there to be pasted."""
    shown = _visible(line)
    if len(shown) <= width or shown.lstrip().startswith("next: my_utils "):
        return [shown]
    return _wrap(shown, width)


def _cut(line: str, width: int) -> str:
    shown = _visible(line)
    return shown if len(shown) <= width else shown[: max(width - 1, 0)] + "…"


def _wrap(text: str, width: int) -> list[str]:
    """A path is left whole, as it is there to be pasted."""
    return textwrap.wrap(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _not_judged(verdict: Verdict, width: int) -> Iterator[str]:
    texts = [f"NOT JUDGED: {verdict.reason}"]
    texts += [f"  to judge it: {verdict.remedy}"] if verdict.remedy else []
    texts += [f"  {note}" for note in verdict.notes[:NOTES_SHOWN]]
    texts += [f"  {_also(one, verdict)}" for one in verdict.findings[:ALSO_MAX]]
    for text in texts:
        yield from _wrap(_visible(text), max(width, 20))


def _judged(verdict: Verdict, width: int) -> Iterator[str]:
    costly = verdict.costly
    if not costly:
        yield _head("NOTHING STANDS OUT", verdict)
        yield from (f"  {_also(one, verdict)}" for one in verdict.findings[:ALSO_MAX])
        return
    first, *others = costly
    yield _head(headline(first, verdict), verdict)
    yield from (f"  {line}" for line in body(first, verdict))
    yield from (f"  {line}" for line in _next_lines(first, verdict))
    yield from (f"also: {_also(one, verdict)}" for one in others[:ALSO_MAX])
    if len(others) > ALSO_MAX:
        yield f"and {len(others) - ALSO_MAX} more, see --json"
    known = [one for one in verdict.findings if not is_costly(one.kind)]
    slower = [one for one in known[1:] if one.kind == "slower rank"]
    yield from (f"  {_also(one, verdict)}" for one in [*known[:1], *slower[:SLOWER_MAX]])


def _head(text: str, verdict: Verdict) -> str:
    ranks = count_text(verdict.judged_ranks, "rank")
    figures = f"{ms_text(verdict.step_ns)} a step, {verdict.judged_steps} steps, {ranks}"
    return f"{text:<45} {figures}"


def _foot(verdict: Verdict) -> Iterator[str]:
    if verdict.gpu_errors:
        more = len(verdict.gpu_errors) - GPU_ERRORS_SHOWN
        shown = "; ".join(verdict.gpu_errors[:GPU_ERRORS_SHOWN])
        yield shown + (f"; and {count_text(more, 'rank')} more" if more > 0 else "")
    if verdict.status != "not judged":
        yield from verdict.losses
        parts = [f"not timed {_percent(verdict.untimed_share)}"]
        parts += [verdict.memory] if verdict.memory else []
        computed = utilisation_text(verdict.model_flops, verdict.step_ns)
        parts += [computed] if computed else []
        stopped = verdict.stopped
        if stopped:
            parts.append(f"{_ranks(stopped)} ended early")
        elif verdict.hangs is not None:
            parts.append("hangs" if verdict.hangs else "no hang")
        if verdict.inferred:
            parts.append(f"meetings inferred: {', '.join(verdict.inferred)}")
        yield GAP.join(parts)
    if verdict.judged_steps:
        left_out = f"; first {verdict.warmup} left out as warm-up" if verdict.warmup else ""
        last = (verdict.last_step or 0) + 1
        yield (
            f"judged: {verdict.judged_ranks} of {count_text(verdict.world_size, 'rank')}, "
            f"steps {verdict.first_step}:{last}{_of_attempts(verdict)}{left_out}"
        )
    if verdict.window_steps > 1:
        yield _of_windows(verdict)


def _of_windows(verdict: Verdict) -> str:
    text = f"in windows of {verdict.window_steps:,} steps"
    if verdict.single_from is None:
        return text
    return (
        f"{text}; single steps from step {verdict.single_from:,} on: --steps {verdict.single_from}:"
    )


def _of_attempts(verdict: Verdict) -> str:
    """
    >>> from my_utils.analysis.why import Verdict
    >>> _of_attempts(Verdict("ok", attempts=2, repeated=(35, 39)))
    ' of 2 attempts, steps 35:40 done again'
    >>> _of_attempts(Verdict("ok", older_attempts=1))
    '; 1 older attempt left out'
    """
    text = f" of {verdict.attempts} attempts" if verdict.attempts > 1 else ""
    if verdict.repeated is not None:
        first, last = verdict.repeated
        text += f", steps {first}:{last + 1} done again"
    if verdict.older_attempts:
        text += f"; {count_text(verdict.older_attempts, 'older attempt')} left out"
    return text


# --- one finding ---


def headline(one: Finding, verdict: Verdict) -> str:
    """What comes first, such as "BOUND BY INPUT on rank 1"."""
    where = f" in {one.stage}" if one.stage else ""
    who = who_text(one, verdict)
    if _is_collecting(one):
        return f"BOUND BY GARBAGE COLLECTION on {who}"
    if one.kind == "straggler" and verdict.judged_ranks == 1:  # nobody waits for it
        return f"LONG STEPS on {who}{where}"
    if one.kind == "straggler":
        unknown = "" if one.stage or one.hosts or one.detail.get("parts") else ", stage not known"
        return f"{HEADS[one.kind]} {who}{where}{unknown}"
    if one.kind == "slower since":
        return f"{HEADS[one.kind]} step {one.since_step}{where}"
    if one.kind == "not judged inside":
        return f"{one.stage} ({_percent(one.share)}): not judged inside"
    if one.kind == "throughput falls":
        return f"{HEADS[one.kind]}{where}"
    return f"{HEADS[one.kind]} on {who}" if who else HEADS[one.kind]


def _is_collecting(one: Finding) -> bool:
    return one.kind in ("untimed", "host hiccups") and is_collection(one.detail)


def who_text(one: Finding, verdict: Verdict) -> str:
    """The host, or the ranks; "all ranks" where it is all of several."""
    if one.hosts:
        names = ", ".join(one.hosts[:2]) + (", …" if len(one.hosts) > 2 else "")
        word = "host" if len(one.hosts) == 1 else "hosts"
        return f"{word} {names}, {count_text(len(one.ranks), 'rank')}"
    if not one.ranks:
        return ""
    if len(one.ranks) == verdict.judged_ranks:
        return "all ranks" if len(one.ranks) > 1 else f"rank {one.ranks[0]}"
    return _ranks(one.ranks)


def body(one: Finding, verdict: Verdict) -> Iterator[str]:
    yield from BODIES.get(one.kind, _of_a_stage)(one, verdict)
    if "gpu_mhz" in one.detail:
        yield _of_clocks(one)
    if one.since_step is not None and one.kind not in ("memory grows", "slower since"):
        yield f"since step {one.since_step}"
    yield from _gain(one, verdict)


def _of_a_stage(one: Finding, verdict: Verdict) -> Iterator[str]:
    detail = one.detail
    took = detail.get("took_ns")
    if took is not None:
        others = detail.get("others_ns")
        step_ns = detail.get("step_ns", verdict.step_ns) or 1.0
        rest = "" if others is None else f"; the others {ms_text(others)}"
        share = f"{ms_text(took)} of {ms_text(step_ns)} ({_percent(took / step_ns)})"
        yield f"{who_text(one, verdict)} {_does(one)} {share}{_where(one)}{rest}"
    if "each_ns" in detail:
        every = f", every {detail['every']} steps" if "every" in detail else ""
        yield f"{count_text(detail['times'], 'time')}{every}: {ms_text(detail['each_ns'])} each"
    if "hiccups" in detail:
        yield from _of_hiccups(one, verdict)
        yield from _of_loading(detail)
        return
    if "last_share" in detail:
        yield from last_lines(detail)
    yield from _of_loading(detail)
    if parts := detail.get("parts"):
        yield "more than the others in " + ", ".join(
            f"{name} ({_percent(share)})" for name, share in parts
        )
    if "causes" in detail:
        yield causes_line(detail)
    yield from _waits(one, verdict)


def _does(one: Finding) -> str:
    is_one = len(one.ranks) == 1 and not one.hosts
    if one.stage is None:
        return "works" if is_one else "work"
    if one.kind == "input":
        return "waits" if is_one else "wait"
    return "spends" if is_one else "spend"


def _where(one: Finding) -> str:
    if one.stage is None:
        return " between the meetings"
    return " in no stage" if one.stage == UNTIMED else f" in {one.stage}"


def _waits(one: Finding, verdict: Verdict) -> Iterator[str]:
    lost, where = one.detail.get("lost_ns"), one.detail.get("waits_in")
    if not where or lost is None:
        return
    count = int(one.detail.get("losers", 0))
    seconds = lost * verdict.judged_steps * 1e-9
    whom = "it" if len(one.ranks) == 1 else "them"
    who = "the other waits" if count == 1 else "the others wait"
    each = " each" if count > 1 else ""
    verb = "loses" if count == 1 else "lose"
    inferred = " (inferred)" if one.inferred else ""
    yield (
        f"{who} for {whom} in {where}{inferred}: "
        f"{count_text(count, 'rank')} {verb} {seconds:.1f} s{each}"
    )


def _of_host_hiccups(one: Finding, verdict: Verdict) -> Iterator[str]:
    """Of steps that stand out, of many ranks, or of one rank whose hiccups no step shows alone."""
    if "hiccups" in one.detail:
        return _of_hiccups(one, verdict)
    return (_of_imbalance if "spread_ns" in one.detail else _of_a_stage)(one, verdict)


def _of_hiccups(one: Finding, verdict: Verdict) -> Iterator[str]:
    detail = one.detail
    every = f", every {detail['every']} steps" if "every" in detail else ""
    where = f" in {one.stage}" if one.stage else ""
    where = " in no stage" if one.stage == UNTIMED else where
    count = int(detail["hiccups"])
    take = "takes" if count == 1 else "take"
    yield (
        f"{count_text(count, 'step')} {take} {ms_text(detail['hiccup_ns'])} longer"
        f"{where} on {who_text(one, verdict)}{every}"
    )
    if "causes" in detail:
        yield causes_line(detail)


def causes_line(detail: Mapping[str, Any]) -> str:
    """
    >>> causes_line({"cause": "gc2", "causes": [("gc2", 0.94)]})
    'of that 94 % is garbage collection, generation 2'
    >>> detail = {"cause": "delay", "causes": [("delay", 0.9)], "ran_share": 0.6, "others": 4}
    >>> causes_line(detail).partition("; ")[2]
    'it ran 60 % of the time it wanted: 4 other threads of its host wanted to, too'
    """
    parts = [f"{_percent(share)} is {CAUSES[name]}" for name, share in detail["causes"]]
    what = f"of that {', '.join(parts)}" if parts else ""
    if detail.get("cause") == "unknown":
        what = f"cause unknown: {what}" if parts else "cause unknown"
    pages = detail.get("disk_pages", 0)
    read = f"; it reads {count_text(pages, 'page')} from a disk" if pages else ""
    if "objects" in detail:
        read += f"; it looks at {count_text(detail['objects'], 'object')}"
    if "ran_share" in detail:
        read += f"; it ran {_percent(detail['ran_share'])} of the time it wanted"
    if detail.get("others", 0) > 0:
        read += f": {count_text(detail['others'], 'other thread')} of its host wanted to, too"
    return f"{what}{read}"


def _of_clocks(one: Finding) -> str:
    """
    >>> from my_utils.analysis.why import Finding
    >>> _of_clocks(Finding("straggler", (12,), detail={
    ...     "gpu_mhz": 1095, "gpu_mhz_others": 1980, "gpu_reason": "thermal"}))
    "rank 12's GPU ran at 1,095 MHz, the others at 1,980: thermal"
    """
    detail = one.detail
    whose = (
        f"{_ranks(one.ranks)}'s GPU" if len(one.ranks) == 1 else f"the GPUs of {_ranks(one.ranks)}"
    )
    why = f": {detail['gpu_reason']}" if detail["gpu_reason"] else ""
    return (
        f"{whose} ran at {detail['gpu_mhz']:,} MHz, the others at {detail['gpu_mhz_others']:,}{why}"
    )


def _of_loading(detail: Mapping[str, Any]) -> Iterator[str]:
    """
    >>> list(_of_loading({"workers_do": "storage", "worker": 2}))
    ['input waits for worker 2, which waits for storage']
    >>> list(_of_loading({"workers_do": "storage", "worker": 2, "read_bytes": 3 << 20}))
    ['input waits for worker 2, which waits for storage and reads 3.00 MiB a step']
    >>> list(_of_loading({"workers_do": "runs", "worker": 0, "num_workers": 1}))
    ["input waits for the loader's only worker, which runs"]
    """
    if detail.get("num_workers") == 0:
        yield "num_workers=0: loading runs in the training process"
    if "workers_do" in detail:
        one = "worker" in detail
        who = f"worker {detail['worker']}" if one else "the loader's workers"
        if detail.get("num_workers") == 1:
            one, who = True, "the loader's only worker"
        does, do = WORKERS_DO[detail["workers_do"]]
        size = detail.get("read_bytes")
        read = "" if size is None else f" and reads {bytes_text(size)} a step"
        yield f"input waits for {who}, which {does if one else do}{read}"


def _of_imbalance(one: Finding, verdict: Verdict) -> Iterator[str]:
    spread = ms_text(one.detail.get("spread_ns", 0.0))
    yield f"the slowest rank changes from step to step; ranks lie {spread} apart on average"
    if "by" in one.detail:
        by, correlation = one.detail["by"], one.detail["correlation"]
        yield f"it follows the {by} of a rank (correlation {correlation:.2f})"


def _of_memory(one: Finding, verdict: Verdict) -> Iterator[str]:
    detail = one.detail
    yield (
        f"{detail['what']} +{bytes_text(detail['bytes_a_step'])} a step since step "
        f"{one.since_step}, {_percent(detail['growth'])} more by the end"
    )


def _of_change(one: Finding, verdict: Verdict) -> Iterator[str]:
    before, after = one.detail["before_ns"], one.detail["after_ns"]
    yield f"a step went from {ms_text(before)} to {ms_text(after)}, on all ranks"
    if one.stage:
        yield f"{_percent(one.detail['stage_share'])} of it in {one.stage}"
    if "causes" in one.detail:
        yield causes_line(one.detail)


def _of_launch(one: Finding, verdict: Verdict) -> Iterator[str]:
    yield "the device runs out of work: it waits for the host to launch kernels"
    yield "try torch.compile or CUDA graphs; these times do not show how much that gains"


def _of_cores(one: Finding, verdict: Verdict) -> Iterator[str]:
    least, most = (_percent(share) for share in one.detail["ran_shares"])
    shares = least if least == most else f"{least.removesuffix(' %')} to {most}"
    wanted = "it wanted" if len(one.ranks) == 1 else "they wanted"
    used_up = one.detail.get("by_quota")
    why = "the quota of the cgroup was used up" if used_up else "other threads had the cores"
    yield f"{who_text(one, verdict)} ran {shares} of the time that {wanted}: {why}"


BODIES: dict[Kind, Callable[[Finding, Verdict], Iterator[str]]] = {
    "host hiccups": _of_host_hiccups,
    "short of cores": _of_cores,
    "moving imbalance": _of_imbalance,
    "memory grows": _of_memory,
    "slower since": _of_change,
    "throughput falls": _of_change,
    "launch": _of_launch,
}


def _gain(one: Finding, verdict: Verdict) -> Iterator[str]:
    if not one.saves_ns_a_step:
        return
    better = max(verdict.step_ns - one.saves_ns_a_step, 1.0)
    times = verdict.step_ns / better
    most = "at most " if one.detail.get("at_least") else ""
    text = f"would be {most}{ms_text(better)} a step ({times:.2g} x)"
    if one.ranks and len(one.ranks) < verdict.judged_ranks:
        whom = _ranks(one.ranks) if len(one.ranks) == 1 else "they"
        text += f" if {whom} {_LIKE_OTHERS.get(one.kind, 'were like the others')}"
    else:
        text += " without it"
    yield text + _throughput(verdict, better)
    hours = one.cost_ns_a_step * verdict.judged_steps * verdict.judged_ranks / 3600e9
    if hours >= 0.1:
        what = "GPU-hours" if verdict.is_cuda else "rank-hours"
        yield f"{hours:.1f} {what} lost in these steps"


def _throughput(verdict: Verdict, better_ns: float) -> str:
    """In tokens where they were recorded, for samples may have any length."""
    units = (verdict.tokens_a_step, "tokens/s"), (verdict.samples_a_step, "samples/s")
    for a_step, unit in units:
        if a_step:
            now, then = (a_step / ns * 1e9 for ns in (verdict.step_ns, better_ns))
            return f": {figure_text(then, 4)} {unit} instead of {figure_text(now, 4)}"
    return ""


def _also(one: Finding, verdict: Verdict) -> str:
    if one.kind == "warm-up":
        return (
            f"warm-up: {_percent(one.share)} of the run, {count_text(one.detail['steps'], 'step')}"
        )
    if one.kind == "slower rank":
        return _of_slower_rank(one)
    if one.kind == "compute":
        return f"the device computes {_percent(one.share)} of the step"
    if one.kind == "memory grows":
        return next(_of_memory(one, verdict))
    if one.kind == "not judged inside":
        last = f"; {last_short(one.detail)}" if "last_share" in one.detail else ""
        return headline(one, verdict) + last
    head = headline(one, verdict).lower() if not one.hosts else headline(one, verdict)
    cause = "" if _is_collecting(one) else CAUSES.get(one.detail.get("cause", ""))
    return f"{head}: {_percent(one.share)} of the run{f', {cause}' if cause else ''}"


def _of_slower_rank(one: Finding) -> str:
    """
    >>> from my_utils.analysis.why import Finding
    >>> _of_slower_rank(Finding("slower rank", (5,), stage="forward", share=0.01, detail={
    ...     "slower": 0.03}))
    'rank 5 takes 3.0 % longer in forward, beyond chance: 1.0 % of the run'
    """
    detail = one.detail
    steps = f" in {count_text(detail['hiccups'], 'step')}" if "hiccups" in detail else ""
    since = "" if one.since_step is None else f" since step {one.since_step}"
    longer = percent_text(detail["slower"])
    return (
        f"{_ranks(one.ranks)} takes {longer} longer in {one.stage}{steps}{since}, beyond chance: "
        f"{percent_text(one.share)} of the run"
    )


def _next_lines(one: Finding, verdict: Verdict) -> list[str]:
    command = f"next: {next_step(verdict)}"
    is_cause = "causes" in one.detail and ("hiccups" in one.detail or one.kind == "untimed")
    page = CAUSES_PAGE if is_cause else PAGES[one.kind]
    page = page_path(INSIDE_PAGE if "last_share" in one.detail else page)
    return [command, f"read: {page}"] if page else [command]  # what is pasted has no page in it


def next_step(verdict: Verdict) -> str | None:
    """What to do about the first finding: a line to change, or a command; None without one."""
    if not verdict.costly:
        return None
    one = verdict.costly[0]
    return change_for(one.kind, one.detail) or _command(one, verdict)


def _command(one: Finding, verdict: Verdict) -> str:
    named = one.ranks if len(one.ranks) < verdict.judged_ranks else ()
    if verdict.single_from is not None and (one.since_step or 0) < verdict.single_from:
        return timeline_command(verdict.paths)  # other commands read the rows of single steps
    return next_command(
        one.kind, paths=verdict.paths, ranks=named, running=verdict.running,
        command=verdict.command,
        step=verdict.last_step if one.since_step is None else one.since_step,
        slow=steps_with_a_slow_one(one.detail, verdict.judged_steps, verdict.window_steps),
    )  # fmt: skip


# --- for issues and chats ---


def markdown(verdict: Verdict) -> str:
    lines = terminal_lines(verdict, 200)
    text = ["```", *lines, "```"]
    if verdict.findings:
        text += ["", "| Finding | Ranks | Stage | A step | Of the step | Since | Read |"]
        text += ["|---|---|---|---|---|---|---|"]
        text += [_row(one, verdict) for one in verdict.findings]
    text += ["", *(f"- {_cell(note)}" for note in verdict.notes)] if verdict.notes else []
    return "\n".join(text) + "\n"


def _row(one: Finding, verdict: Verdict) -> str:
    since = "" if one.since_step is None else str(one.since_step)
    cells = [
        one.kind, who_text(one, verdict), one.stage or "", ms_text(one.cost_ns_a_step),
        _percent(one.share), since, PAGES[one.kind],
    ]  # fmt: skip
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return _cut(text, 200).replace("|", "\\|")
