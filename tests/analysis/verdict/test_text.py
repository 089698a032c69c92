"""The verdict in words: at most twelve lines, every kind, and next commands that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.analysis.verdict.kinds import KINDS, PAGES, Kind, is_costly
from my_utils.analysis.verdict.next_steps import NEXT, next_command
from my_utils.analysis.verdict.text import HEADS
from my_utils.analysis.why import Finding, Verdict, judge
from my_utils.cli import report
from my_utils.profilers.capture.on_demand import command as capture
from my_utils.run import command as run
from my_utils.trace import csv2trace

from ...conftest import ROOT
from ...support.array_runs import ArrayRun
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch

DETAILS: dict[str, dict[str, object]] = {
    "host hiccups": {"hiccups": 7, "hiccup_ns": 75e6 * 180 / 7},
    "moving imbalance": {"spread_ns": 3e7, "by": "tokens", "correlation": 0.93},
    "memory grows": {"what": "memory", "bytes_a_step": 2e6, "growth": 0.4},
    "throughput falls": {"before_ns": 9e7, "after_ns": 12e7, "stage_share": 0.9},
    "slower since": {"before_ns": 9e7, "after_ns": 12e7, "stage_share": 0.9},
    "warm-up": {"steps": 20},
    "short of cores": {"ran_shares": (0.31, 0.45)},
    "slower rank": {"slower": 0.03, "score": 9.5, "peer_score": 1.2, "also": []},
}  # fmt: skip


def finding(kind: Kind) -> Finding:
    ranks = (1,) if kind not in ("moving imbalance", "slower since", "compute") else ()
    detail = DETAILS.get(kind, {"took_ns": 76.4e6, "others_ns": 0.6e6})
    return Finding(
        kind, ranks, stage="input", cost_ns_a_step=75e6, share=0.8, saves_ns_a_step=75e6,
        since_step=80 if kind in ("slower since", "memory grows") else None, detail=dict(detail),
    )  # fmt: skip


def verdict(*kinds: Kind, **changes: object) -> Verdict:
    found = [finding(kind) for kind in kinds]
    status = "found" if any(is_costly(kind) for kind in kinds) else "ok"
    values = {
        "judged_ranks": 4, "world_size": 4, "judged_steps": 180, "first_step": 20,
        "last_step": 199, "warmup": 20, "step_ns": 92.3e6, "untimed_share": 0.012,
        "memory": "memory steady", "paths": ("logs",),
    }  # fmt: skip
    return Verdict(status, found, **{**values, **changes})  # type: ignore[arg-type]


def test_the_ten_lines_of_a_slow_loader() -> None:
    """Each word, as the page has it."""
    run = ArrayRun(ranks=4, steps=200, means_ms={"input": 0.6, "forward": 5, "backward": 9})
    run.more("input", 75.8, rank=1)
    text = judge(run.data(paths=["logs"], running=True)).lines()
    assert text[0].startswith("BOUND BY INPUT on rank 1     ")
    assert text[0].endswith(" ms a step, 198 steps, 4 ranks")
    assert text[1] == "  rank 1 waits 76.4 ms of 91.4 ms (84 %) in input; the others 0.6 ms"
    assert text[2] == "  the others wait for it in backward: 3 ranks lose 15.0 s each"
    assert text[3] == "  would be 15.7 ms a step (5.8 x) if rank 1 loaded like the others"
    assert (
        text[4] == "  next: my_utils capture logs --ranks 1 --wait"
    )  # nothing behind it: it is pasted
    assert text[5] == "  read: docs/runs/slow-input.md"
    assert text[6] == "not timed 1 %  ·  memory not recorded"
    assert text[7] == "judged: 4 of 4 ranks, steps 1:199; first 1 left out as warm-up"
    assert len(text) == 8


@pytest.mark.parametrize(
    ("hangs", "end"), [(None, ""), (False, "  ·  no hang"), (True, "  ·  hangs")]
)
def test_a_hang_is_said_where_somebody_looked(hangs: bool | None, end: str) -> None:
    foot = verdict(hangs=hangs).lines()[-2]
    assert foot == f"not timed 1 %  ·  memory steady{end}"


SAYS_WHAT_TO_READ = """
from my_utils.analysis.why import Finding, Verdict
one = Finding("input", (1,), stage="input", cost_ns_a_step=75e6, share=0.8, saves_ns_a_step=75e6)
verdict = Verdict("found", [one], judged_ranks=4, step_ns=92e6, paths=("logs",))
print("\\n".join(verdict.lines()))
assert "| docs/runs/slow-input.md |" in verdict.markdown(), "for readers elsewhere"
"""


def test_the_page_to_read_is_where_the_user_is(tmp_path: Path) -> None:
    """A path from elsewhere that exists; none where the package came without the tree."""

    def said_with(path: Path) -> str:
        return subprocess.run(
            [sys.executable, "-c", SAYS_WHAT_TO_READ], cwd=tmp_path, check=True, text=True,
            capture_output=True, env={**os.environ, "PYTHONPATH": str(path)},
        ).stdout  # fmt: skip

    in_the_tree = said_with(ROOT)
    line = next(one for one in in_the_tree.splitlines() if one.endswith("slow-input.md"))
    assert Path(line.split()[-1]) == ROOT / "docs/runs/slow-input.md"
    installed = tmp_path / "site-packages"
    shutil.copytree(ROOT / "my_utils", installed / "my_utils")
    alone = said_with(installed)
    assert "BOUND BY INPUT" in alone and "next: " in alone
    assert "docs/" not in alone and "read: " not in alone


def test_hiccups_that_no_step_shows_alone() -> None:
    """They were taken for an imbalance of 0 ms."""
    one = verdict("host hiccups")
    one.findings[0].detail.clear()
    one.findings[0].detail.update(took_ns=380e6, step_ns=400e6, others_ns=260e6)
    text = "\n".join(one.lines())
    assert "380.0 ms of 400.0 ms (95 %)" in text, text
    assert "the others 260.0 ms" in text and "changes from step to step" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_pasted_line_is_the_command(kind: Kind) -> None:
    for width in (60, 200):
        one = verdict(kind, running=True)
        lines = [line.strip() for line in one.lines(width)]
        for line in lines:
            assert not line.startswith("next: my_utils") or line == f"next: {one.next_step()}"
        assert all(line.startswith("read: ") for line in lines if "docs/" in line)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words(kind: Kind, width: int) -> None:
    one = verdict(kind)
    lines = one.lines(width)
    assert 2 < len(lines) <= 12 and all(len(line) <= width for line in lines)
    assert "None" not in "".join(lines)
    if is_costly(kind):
        assert lines[0].startswith(HEADS[kind]) and "next: " in "".join(lines)
    else:
        assert lines[0].startswith("NOTHING STANDS OUT")
    assert kind in one.markdown()


def test_many_findings_keep_to_twelve_lines() -> None:
    kinds = [kind for kind in KINDS if is_costly(kind)]
    many = verdict(*kinds, notes=["a"] * 50)
    for one in many.findings:
        one.cost_ns_a_step = one.saves_ns_a_step = 75e6 / len(kinds)
        one.share = one.cost_ns_a_step / many.step_ns
        if "hiccup_ns" in one.detail:
            one.detail["hiccup_ns"] /= len(kinds)
    lines = many.lines()
    assert len(lines) <= 12 and lines[-1].startswith("judged: 4 of 4 ranks")
    assert any(line.startswith("and ") and "more" in line for line in lines)


def test_samples_and_hours() -> None:
    lines = verdict("input", samples_a_step=128.0, judged_steps=180_000, is_cuda=True).lines()
    assert any("7,399 samples/s instead of 1,387" in line for line in lines)
    assert any(line.strip() == "15.0 GPU-hours lost in these steps" for line in lines)


def test_tokens_are_said_before_samples() -> None:
    one = verdict("input", samples_a_step=128.0, tokens_a_step=2**18)
    (line,) = (line for line in one.lines(150) if "/s instead of" in line)
    then, now = re.search(r": ([0-9,]+) tokens/s instead of ([0-9,]+)$", line).groups()  # type: ignore[union-attr]
    data = one.as_data()
    assert int(now.replace(",", "")) == pytest.approx(data["tokens_a_second"], rel=1e-3)
    assert int(then.replace(",", "")) > int(now.replace(",", ""))
    assert data["samples_a_second"] == pytest.approx(128e3 / data["step_ms"], rel=1e-6)
    assert data["tokens_a_second"] == pytest.approx(2**18 * 1e3 / data["step_ms"], rel=1e-6)
    assert verdict("input").as_data()["tokens_a_second"] is None


def test_names_of_users_do_not_steer_a_terminal() -> None:
    one = verdict("straggler")
    one.findings[0].stage = "for\x1b[2Jward\nnew"
    assert "for\\x1b[2Jward\\nnew" in one.lines()[0]
    assert "\n" not in one.lines()[0]
    one.findings[0].stage = "a|b"
    assert "a\\|b" in one.markdown()


def test_as_data_goes_into_json() -> None:
    run = ArrayRun(ranks=4).more("input", 24, rank=1)
    data = judge(run.data()).as_data()
    again = loads_checked("why", json.dumps(data))
    assert again["version"] == 1 and again["status"] == "found"
    first = again["findings"][0]
    assert (first["kind"], first["ranks"], first["stage"]) == ("input", [1], "input")
    assert first["saves_ns_a_step"] > 20e6 and again["text"] == judge(run.data()).lines()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page(kind: Kind) -> None:
    assert (ROOT / PAGES[kind]).is_file()
    assert PAGES[kind].removeprefix("docs/") in (ROOT / "docs/index.md").read_text()


def parsed(words: list[str]) -> None:
    """Each command takes its arguments; those of `run` are another program's."""
    own_words = words[: words.index("--")] if words[1] == "run" else words
    for command in (capture, report, csv2trace, run):
        own = command.command_parser()
        if words[1] in own.prog.split():
            own.parse_args(own_words[2:])
            return
    raise AssertionError(words)


@pytest.mark.parametrize("kind", sorted(NEXT))
def test_next_commands_can_be_pasted(kind: Kind) -> None:
    folder = str(Path("/tmp/my logs"))
    for running in (True, False):
        for command in ((), ("torchrun", "--nproc-per-node", "2", "train.py", "a b")):
            for ranks in ((), (1,), (0, 3, 4, 5)):
                line = next_command(
                    kind, paths=[folder], ranks=ranks, running=running, command=command, step=80
                )
                words = shlex.split(line)
                assert words[0] == "my_utils" and words[1] in ("capture", "report", "trace", "run")
                assert folder in words or words[words.index("--") + 1 :] == list(command)
                parsed(words)


def test_a_run_that_ended_is_run_again() -> None:
    line = verdict("input", command=("torchrun", "train.py")).lines()
    assert any("next: my_utils run --capture 1 -- torchrun train.py" in text for text in line)


def test_a_long_line_of_causes_is_wrapped_and_not_cut() -> None:
    causes = [("gc2", 0.61), ("delay", 0.21), ("storage", 0.11), ("other", 0.07)]
    one = verdict("host hiccups")
    one.findings[0].detail = {
        "hiccups": 9, "hiccup_ns": 1.5e9, "cause": "gc2", "causes": causes, "objects": 4_712_345,
    }  # fmt: skip
    lines = one.lines(60)
    text = " ".join(line.strip() for line in lines)
    assert "it looks at 4,712,345 objects" in text
    assert all(len(line) <= 60 for line in lines if "next: " not in line)
