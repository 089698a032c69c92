"""Metrics at a receiver of OTLP: a real HTTP server that decodes the protobuf."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from my_utils.core import warnings as _warnings
from my_utils.record.exporters import OtlpExporter
from my_utils.record.exporters.otlp import HOSTS_MAX, OTHER_HOSTS, STAGES_MAX
from my_utils.timing import TimeManager

from ...conftest import RunPython

pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
from ...support.otlp_receiver import Point, Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def values(points: list[Point], name: str, *keys: str) -> dict[tuple[Any, ...], float]:
    return {
        tuple(attributes[key] for key in keys): value
        for metric, attributes, value in points
        if metric == name
    }


def test_one_process(receiver: Receiver) -> None:
    manager = TimeManager({"load": [0.25, 0.75]})
    with OtlpExporter(manager, receiver.endpoint, every_s=1000) as exporter:
        exporter.step(7)
    (points,) = receiver.requests
    assert exporter.written == 1 and exporter.failed == 0
    found = values(points, "my_utils.stage.duration", "stage", "device")
    assert found == {("load", "cpu"): pytest.approx(0.5)}
    assert values(points, "my_utils.stage.worst.rank", "stage", "place") == {("load", 1): 0}
    assert values(points, "my_utils.step") == {(): 7}
    assert values(points, "my_utils.ranks") == {(): 1}


RANK = """
import sys, torch.distributed as dist
from my_utils import GlobalLogger
from my_utils.record.exporters import OtlpExporter
from my_utils.timing import TimeManager
rank, file, endpoint = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=4)
manager = TimeManager({"forward": [0.1 * (rank + 1)], "load": [0.4 - 0.1 * rank] * 2})
with OtlpExporter(manager, endpoint, every_s=1000, worst=2) as exporter:
    if rank > 0:
        exporter.step(1)
        exporter.close()
    dist.barrier()
    if rank == 0:
        exporter.step(1)
        exporter.close()
    dist.barrier()
assert exporter.failed == 0
"""


@pytest.mark.thorough
def test_the_worst_of_four_ranks(receiver: Receiver, run_python: RunPython, tmp_path: Any) -> None:
    """Real ranks with torch's store; rank 0 sends for all."""
    pytest.importorskip("torch", reason="torch is not installed")
    threads = [
        threading.Thread(
            target=lambda rank=rank: ended.append(
                run_python("-c", RANK, str(rank), str(tmp_path / "store"), receiver.endpoint)
            )
        )
        for rank in range(4)
    ]
    ended: list[subprocess.CompletedProcess[str]] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in ended] == [0] * 4, [done.stderr for done in ended]
    (points,) = receiver.requests
    hosts = values(points, "my_utils.stage.duration", "stage")
    assert hosts == {("forward",): pytest.approx(0.25), ("load",): pytest.approx(0.25)}
    assert values(points, "my_utils.stage.worst.rank", "stage", "place") == {
        ("forward", 1): 3, ("forward", 2): 2, ("load", 1): 0, ("load", 2): 1,
    }  # fmt: skip
    worst = values(points, "my_utils.stage.worst.duration", "stage", "place")
    assert worst["forward", 1] == pytest.approx(0.4)
    assert values(points, "my_utils.ranks") == {(): 4}


MANY = """
import sys, torch.distributed as dist
from my_utils import GlobalLogger
from my_utils.core.store import default_store
from my_utils.record.exporters import OtlpExporter
from my_utils.timing import TimeManager
ranks, stages, file, endpoint = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
GlobalLogger().setup("logs", rank=0, world_size=ranks)
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
import json
for rank in range(1, ranks):
    totals = {f"stage{at}": [1, rank * 1000, 1, rank * 1000] for at in range(stages)}
    said = {"host": f"node{rank // 8}", "totals": totals}
    store.set(f"my_utils/exporters/1/manager/{rank}", json.dumps(said))
manager = TimeManager({f"stage{at}": [1e-9] for at in range(stages)})
with OtlpExporter(manager, endpoint, every_s=1000) as exporter:
    exporter.step(1)
assert exporter.failed == 0
"""


OTHERS = """
import json, sys, torch.distributed as dist
from my_utils import GlobalLogger, MyTimer
from my_utils.record.exporters import OtlpExporter
from my_utils.timing import TimeManager
file, endpoint = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
for rank, said in {1: {"host": "a", "totals": {"f": [1, 10**9]}}, 2: {"host": 3}}.items():
    store.set(f"my_utils/exporters/2/manager/{rank}", json.dumps(said))
GlobalLogger().setup("logs", rank=0, world_size=3)
timer = MyTimer()
with timer.time_stage("iter"):
    pass
for source in (TimeManager({"f": [0.5]}), timer):
    with OtlpExporter(source, endpoint, every_s=1000) as exporter:
        exporter.step(1)
    print(exporter.written, exporter.failed)
"""


@pytest.mark.parametrize(
    ("restarts", "ranks", "counts"), [("0", [1, 1], "1 0\n1 0\n"), ("1", [2, 1], "1 1\n1 0\n")]
)
def test_totals_of_another_attempt_or_timer_and_damaged_ones_do_not_count(
    restarts: str,
    ranks: list[int],
    counts: str,
    receiver: Receiver,
    run_python: RunPython,
    tmp_path: Any,
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    arguments = (str(tmp_path / "store"), receiver.endpoint)
    done = run_python("-c", OTHERS, *arguments, env={"TORCHELASTIC_RESTART_COUNT": restarts})
    assert (done.returncode, done.stdout) == (0, counts), done.stderr
    assert [values(points, "my_utils.ranks")[()] for points in receiver.requests] == ranks
    assert ("the totals of rank 2 cannot be read" in done.stderr) == (restarts == "1")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stages"), [(64, 4), (2048, 40)])
def test_the_number_of_series_is_bounded(
    ranks: int, stages: int, receiver: Receiver, run_python: RunPython, tmp_path: Any
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    arguments = (str(ranks), str(stages), str(tmp_path / "store"), receiver.endpoint)
    done = run_python("-c", MANY, *arguments)
    assert done.returncode == 0, done.stderr
    points = [point for request in receiver.requests for point in request]
    assert values(points, "my_utils.ranks") == {(): ranks}
    durations = values(points, "my_utils.stage.duration", "stage", "device", "host")
    hosts = {host for _, _, host in durations}
    assert len({stage for stage, _, _ in durations}) == min(stages, STAGES_MAX)
    assert (OTHER_HOSTS in hosts) == (ranks == 2048)
    assert len(durations) <= STAGES_MAX * (HOSTS_MAX + 1) * 2 < 2000
    worst = values(points, "my_utils.stage.worst.rank", "stage", "device", "place")
    assert {rank for (_, _, place), rank in worst.items() if place == 1} == {ranks - 1}
    assert len(points) <= STAGES_MAX * (HOSTS_MAX + 1 + 2 * 3) * 2 + 2
    assert ("sends 30 stages" in done.stderr) == (stages > STAGES_MAX)


def test_a_receiver_that_refuses_is_one_warning(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("OtlpExporter")
    receiver.status = 400
    with OtlpExporter(TimeManager({"load": [0.25]}), receiver.endpoint, every_s=1000) as exporter:
        exporter.step(1)
    assert (exporter.written, exporter.failed) == (0, 1)
    assert "OtlpExporter could not write stage times" in caplog.text
    _warnings.forget("OtlpExporter")


def test_a_receiver_that_never_answers_is_said_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("my_utils.record.exporters.exporter.LAST_WRITE_S", 0.2)
    _warnings.forget("OtlpExporter")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        exporter = OtlpExporter(TimeManager({"load": [0.001]}), endpoint, every_s=100.0)
        exporter.step(0)
        exporter.close()
        assert (exporter.written, exporter.failed) == (0, 1)
    assert "could not write stage times: TimeoutError: no answer within 0.2 s" in caplog.text


def test_the_address_of_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.endpoint)
    with OtlpExporter(TimeManager({"load": [0.25]}), every_s=1000) as exporter:
        exporter.step(1)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"endpoint": 3}, TypeError, "endpoint must be a str, not 3"),
        ({"worst": 0}, ValueError, "worst must be at least 1, not 0"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        OtlpExporter(TimeManager(), **arguments)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ImportError, match="pip install opentelemetry-exporter-otlp-proto-http"):
        OtlpExporter(TimeManager())
