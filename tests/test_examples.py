"""Each script in examples/ runs as it is, and what it records turns into a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .support.variants import gate_runs

# some import much, in several processes
pytestmark = [pytest.mark.long_file, pytest.mark.timeout(320)]

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# The others train for half a minute, or show what is tested elsewhere, too.
IN_GATE = ("custom_events.py", "find_first_nan.py", "slow_loader.py", "train_gpt.py")
RUN_BELOW = (
    "find_a_planted_bug.py", "plain_loop.py", "replica_watch.py", "weights_passport.py",
    "where_memory_goes.py",
)  # fmt: skip
FILES = {"gather_times.py": ("times.pt", "simulate.png")}  # that a script says it writes


def run(*command: str | Path, cwd: Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def trace_of(log_dir: Path) -> list[dict[str, Any]]:
    out = log_dir / "trace.json"
    run("-m", "my_utils.csv2trace", log_dir, "-o", out, cwd=log_dir)
    with open(out, encoding="utf-8") as handle:
        content = json.load(handle)
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def stages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The timed stages; step markers and the ends of arrows have no node."""
    return [event for event in events if event["ph"] == "X" and "node_id" in event.get("args", {})]


def counts(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["name"] for event in stages(events))


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {
        "custom_events.py",
        "plain_loop.py",
        "train_gpt.py",
    }


SCRIPTS = [path for path in EXAMPLES if path.name not in RUN_BELOW]


@pytest.mark.slow
@pytest.mark.parametrize("script", gate_runs(IN_GATE, SCRIPTS, lambda path: path.name))
def test_runs_as_it_is(script: Path, tmp_path: Path) -> None:
    run_as_it_is(script, tmp_path)


def run_as_it_is(script: Path, tmp_path: Path) -> str:
    printed = run(script, cwd=tmp_path)
    if "GlobalLogger" in script.read_text(encoding="utf-8"):
        assert (tmp_path / "logs" / "profile_rank_0.csv").stat().st_size > 1000
    for name in FILES.get(script.name, ()):
        assert (tmp_path / name).stat().st_size > 1000, name
    leftovers = [path.name for path in tmp_path.rglob("*.journal*")]
    assert leftovers == []
    return printed


def test_plain_loop(tmp_path: Path) -> None:
    run_as_it_is(ROOT / "examples" / "plain_loop.py", tmp_path)
    assert counts(trace_of(tmp_path / "logs")) == {"load": 10, "compute": 10}
    report = (tmp_path / "logs" / "report.txt").read_text(encoding="utf-8")
    assert "load" in report
    assert "compute" in report


def test_custom_events(tmp_path: Path) -> None:
    run(ROOT / "examples" / "custom_events.py", tmp_path / "mine", cwd=tmp_path)
    events = trace_of(tmp_path / "mine")
    assert counts(events) == {"prepare": 12, "iter": 12, "wait": 12, "compute": 12}

    kinds = Counter((event["name"], event["ph"]) for event in events)
    assert kinds["batch", "s"] == kinds["batch", "f"] == 12
    assert kinds["upload", "b"] == kinds["upload", "e"] == 12
    instants = [event for event in events if event["ph"] in "iI" and event["name"] == "checkpoint"]
    assert [event["args"]["path"] for event in instants] == [f"model_{n}.pt" for n in (3, 7, 11)]
    losses = Counter(event["name"] for event in events if event["ph"] == "C")
    assert losses["queue"] == 12
    assert losses["loss.train"] == losses["loss.valid"] == 12

    threads = {(event["tid"], event["name"] == "prepare") for event in stages(events)}
    assert sorted(producer for _, producer in threads) == [False, True]


@pytest.mark.thorough
def test_train_gpt_on_two_ranks(tmp_path: Path) -> None:
    script = ROOT / "examples" / "train_gpt.py"
    run(
        "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", "2", script, "two", cwd=tmp_path,
    )  # fmt: skip
    events = trace_of(tmp_path / "two")
    names = ("iter", "data", "forward", "backward", "all_reduce", "optimizer")
    assert counts(events) == dict.fromkeys(names, 2 * 20)
    assert len({event["pid"] for event in stages(events)}) == 2


@pytest.mark.slow
def test_the_planted_bug_is_found(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    found = run_as_it_is(ROOT / "examples" / "find_a_planted_bug.py", tmp_path)
    assert "first difference: transformer.h.3.attn (GPT2Attention), call 0" in found
    assert "after c_attn and before it calls c_proj, whose inputs differ" in found


@pytest.mark.slow
def test_where_memory_goes(tmp_path: Path) -> None:
    printed = run_as_it_is(ROOT / "examples" / "where_memory_goes.py", tmp_path)
    assert " MB in backward, step " in printed
    curves = {event["name"] for event in trace_of(tmp_path / "logs") if event["ph"] == "C"}
    assert "process.rss_bytes" in curves
    for kind in ("png", "csv"):
        assert (tmp_path / "logs" / f"example_rank0_performance_profile.{kind}").exists()


@pytest.mark.slow
def test_slow_ranks(tmp_path: Path) -> None:
    """Who is named is decided where the truth is known, in test_run_report; here ranks are real."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    said = run(ROOT / "examples" / "slow_ranks.py", tmp_path, cwd=tmp_path)
    assert f"the report: {tmp_path / 'report.html'}" in said
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "8 ranks, steps 0 to 39" in page
    assert "iter/all_reduce" in page
    assert '"heat":{"ranks":[0,1,2,3,4,5,6,7]' in page
    assert said.splitlines()[0] in page  # the verdict


@pytest.mark.thorough
def test_the_drift_of_a_replica_is_found(tmp_path: Path) -> None:
    found = run_as_it_is(ROOT / "examples" / "weights_passport.py", tmp_path)
    assert "replicas: differ since step 51 to 60" in found
    assert "0.weight: replicas differ: rows 32-47: rank 2 against the 3 others" in found


@pytest.mark.thorough
@pytest.mark.slow
def test_the_drift_of_a_watched_replica_is_found(tmp_path: Path) -> None:
    found = run_as_it_is(ROOT / "examples" / "replica_watch.py", tmp_path)
    assert "replicas differ since step 51 to 60: 0.weight, rows 32-47, rank 2 against" in found
    assert "the step repeats itself, bit for bit" in found
