"""`--export` of `why` and `report`, read back with the targets' own readers, all without a network.

MLflow is not part of the tests' environment: MLFLOW_PYTHONPATH may name a folder that has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.verdict.export import parse_target

from ...conftest import ROOT, RunPython
from ...support.run_csv import RankCsv
from ...support.wandb_files import records

pytestmark = pytest.mark.no_torch

FOUND = 3


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A run of one rank that spends its time in no stage."""
    folder = tmp_path / "logs"
    rank = RankCsv()
    rank.process()
    for step in range(40):
        rank.step(step, 10.1 * step, [("forward", 0.0, 0.2)])
    rank.write(folder)
    return folder


def verdict_of(logs: Path, run_python: RunPython) -> dict[str, Any]:
    return dict(json.loads(run_python("-m", "my_utils", "why", str(logs), "--json").stdout))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("wandb", "does not name a run: wandb=RUN"),
        ("mlflow=", "does not name a run: mlflow=RUN"),
        ("otlp=", "does not name a run: otlp=RUN, where RUN is the address"),
        ("comet=1", "must be wandb, tensorboard, mlflow, otlp and the run"),
    ],
)
def test_a_run_must_be_named(text: str, reason: str, logs: Path, run_python: RunPython) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_target(text)
    done = run_python("-m", "my_utils", "why", str(logs), "--export", text)
    assert done.returncode == 2
    assert reason in done.stderr


def test_nothing_is_sent_unasked(logs: Path, run_python: RunPython) -> None:
    program = (
        "import sys; from my_utils.cli.why import main; main([sys.argv[1]]);"
        "print([m for m in ('wandb', 'mlflow', 'tensorboard') if m in sys.modules])"
    )
    assert run_python("-c", program, str(logs)).stdout.endswith("[]\n")


@pytest.mark.parametrize("command", ["why", "report"])
def test_tensorboard(command: str, logs: Path, tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    board = tmp_path / "runs" / "one"
    output = ["-o", str(tmp_path / "page.html")] if command == "report" else []
    export = ["--export", f"tensorboard={board}"]
    done = run_python("-m", "my_utils", command, str(logs), *output, *export)
    assert done.returncode == (FOUND if command == "why" else 0), done.stderr
    said = verdict_of(logs, run_python)
    read = EventAccumulator(str(board))
    read.Reload()
    (event,) = read.Scalars("my_utils/step_ms")
    assert event.value == pytest.approx(said["step_ms"], rel=1e-6, abs=1e-6)
    assert event.step == said["last_step"]
    (share,) = read.Scalars("my_utils/untimed_share")
    assert share.value == pytest.approx(said["untimed_share"], abs=1e-3)
    (share,) = read.Scalars("my_utils/untimed/share")
    assert share.value == pytest.approx(said["findings"][0]["share"], abs=1e-3)
    (goodput,) = read.Scalars("my_utils/goodput")
    assert goodput.value == pytest.approx(said["ledger"]["goodput"], abs=1e-3)
    rows = [name for name in read.Tags()["scalars"] if name.startswith("my_utils/ledger/")]
    shares = [read.Scalars(name)[0].value for name in rows]
    assert sum(shares) == pytest.approx(1.0, abs=1e-5)
    (text,) = read.Tensors("my_utils/verdict")
    assert said["text"][0] in make_ndarray(text.tensor_proto)[0].decode()


def test_a_report_without_a_page_sends_the_ledger_too(
    logs: Path, tmp_path: Path, run_python: RunPython
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = tmp_path / "runs" / "one"
    arguments = ["--json", "--export", f"tensorboard={board}"]
    done = run_python("-m", "my_utils", "report", str(logs), *arguments)
    assert done.returncode == 0, done.stderr
    read = EventAccumulator(str(board))
    read.Reload()
    (goodput,) = read.Scalars("my_utils/goodput")
    assert goodput.value == pytest.approx(
        verdict_of(logs, run_python)["ledger"]["goodput"], abs=1e-3
    )


@pytest.mark.parametrize("command", ["why", "report"])
def test_otlp(command: str, logs: Path, tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="the OTLP exporter is not installed")
    from ...support.otlp_receiver import receiving

    output = ["-o", str(tmp_path / "page.html")] if command == "report" else []
    with receiving() as receiver:
        export = ["--export", f"otlp={receiver.endpoint}"]
        done = run_python("-m", "my_utils", command, str(logs), *output, *export)
        receiver.status = 400
        refused = run_python("-m", "my_utils", command, str(logs), *output, *export)
    assert done.returncode == (FOUND if command == "why" else 0), done.stderr
    assert refused.returncode == 1
    assert f"otlp run {receiver.endpoint}: the receiver did not take them" in refused.stderr
    said = verdict_of(logs, run_python)
    (points,) = receiver.requests
    found = {name: value for name, _, value in points}
    assert {attributes["status"] for _, attributes, _ in points} == {"found"}
    assert found["my_utils.step_ms"] == pytest.approx(said["step_ms"], rel=1e-6, abs=1e-6)
    assert found["my_utils.untimed.share"] == pytest.approx(said["findings"][0]["share"], abs=1e-3)
    if command == "why":
        assert found["my_utils.goodput"] == pytest.approx(said["ledger"]["goodput"], abs=1e-3)
        rows = [value for name, value in found.items() if name.startswith("my_utils.ledger.")]
        assert sum(rows) == pytest.approx(1.0, abs=1e-5)


def test_wandb_offline(logs: Path, tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    program = """
import sys
from my_utils.cli.why import main
sys.exit(main([sys.argv[1], "--export", "wandb=mine/run-seven"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(logs)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == FOUND, done.stderr
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-run-seven")
    found = wandb_summary(next(folder.glob("*.wandb")))
    said = verdict_of(logs, run_python)
    assert json.loads(found["my_utils/step_ms"]) == pytest.approx(
        said["step_ms"], rel=1e-6, abs=1e-6
    )
    assert json.loads(found["my_utils/status"]) == "found"
    assert said["text"][0] in json.loads(found["my_utils/verdict"])


def wandb_summary(path: Path) -> dict[str, str]:
    """What the file of an offline run holds."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    found: dict[str, str] = {}
    for data in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for item in record.summary.update:
            found["/".join(item.nested_key) or item.key] = item.value_json
    return found


def mlflow_paths() -> list[str] | None:
    if importlib.util.find_spec("mlflow") is not None:
        return []
    place = os.environ.get("MLFLOW_PYTHONPATH")
    return [place] if place else None


@pytest.mark.skipif(mlflow_paths() is None, reason="mlflow is not installed; MLFLOW_PYTHONPATH")
def test_mlflow(logs: Path, tmp_path: Path, run_python: RunPython) -> None:
    program = """
import sys, mlflow
client = mlflow.MlflowClient()
run = client.create_run(client.create_experiment("mine")).info.run_id
from my_utils.cli.why import main
status = main([sys.argv[1], "--export", f"mlflow={run}"])
read = client.get_run(run)
import json, pathlib
text = pathlib.Path(read.info.artifact_uri.removeprefix("file://"), "my_utils/verdict.md")
print(json.dumps([status, read.data.metrics, read.data.tags["my_utils.status"], text.read_text()]))
print(main([sys.argv[1], "--quiet", "--export", "mlflow=" + "0" * 32]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(logs)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *(mlflow_paths() or [])]),
            "MLFLOW_TRACKING_URI": f"file://{tmp_path / 'store'}",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, answer, unknown = done.stdout.splitlines()
    status, metrics, tag, text = json.loads(answer)
    assert (status, tag) == (FOUND, "found")
    said = verdict_of(logs, run_python)
    assert metrics["my_utils/step_ms"] == pytest.approx(said["step_ms"], rel=1e-6, abs=1e-6)
    assert said["text"][0] in text
    assert unknown == "1" and "my_utils why: error: mlflow run 000" in done.stderr


@pytest.mark.parametrize("kind", ["wandb", "tensorboard", "mlflow"])
def test_without_the_package_it_names_the_extra(
    kind: str, logs: Path, tmp_path: Path, run_python: RunPython
) -> None:
    (tmp_path / f"{kind}.py").write_text("raise ImportError('not here')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from my_utils.cli.why import main\n"
        f"sys.exit(main([{str(logs)!r}, '--quiet', '--export', {kind + '=x'!r}]))"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert f"--export {kind} needs {kind}" in done.stderr
    assert f"pip install {kind}" in done.stderr
