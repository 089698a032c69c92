"""The rules and the dashboard in `examples/prometheus`: each metric and label in them is one that
the exporter gives, and Prometheus takes the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from my_utils import MyTimer
from my_utils.record.exporters import PrometheusExporter

from ...conftest import ROOT

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
yaml: Any = pytest.importorskip("yaml", reason="pyyaml is not installed")

pytestmark = pytest.mark.no_torch

FOLDER = ROOT / "examples" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))

METRIC = re.compile(r"\bmy_utils[\w:]*")
GROUPED = re.compile(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)")
SELECTED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [
        one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]
    return [rule["expr"] for rule in rules()] + queries + variables


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric in the file of a real exporter."""
    from prometheus_client.parser import text_string_to_metric_families

    timer = MyTimer(tag="train")
    timer.set_step(3)
    with timer.time_stage("iter"), timer.time_stage("forward"):
        pass
    with PrometheusExporter(timer, tmp_path_factory.mktemp("collector")) as exporter:
        pass
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exporter.path.read_text()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_each_metric_is_one_that_the_exporter_gives(exported: dict[str, set[str]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for text in expressions() for name in METRIC.findall(text)}
    assert used <= exported.keys() | recorded
    assert {"my_utils_step", "my_utils_stage_seconds_sum", *recorded} <= used | recorded


def test_each_label_is_one_that_the_exporter_gives(exported: dict[str, set[str]]) -> None:
    known = set().union(*exported.values())
    used = {
        name.strip()
        for text in expressions()
        for names in [*GROUPED.findall(text), *SELECTED.findall(text)]
        for name in names.split(",")
        if name.strip()
    }
    assert {"timer", "stage"} <= used <= known
    annotations = json.dumps([rule.get("annotations", {}) for rule in rules()])
    assert set(re.findall(r"\$labels\.(\w+)", annotations)) <= known


def test_the_panels_are_apart_and_have_a_source() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        cells |= own
        assert panel["datasource"]["uid"] == "${source}"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    names = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD))) - {"__all"} == names


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def test_prometheus_takes_the_rules(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", FOLDER / "rules.yml"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SLOW_RANK = """
rule_files: [rules.yml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
{series}
    alert_rule_test:
      - eval_time: {at}
        alertname: {name}
        exp_alerts: {alerts}
"""


def series(labels: str, values: str) -> str:
    return f"      - series: '{labels}'\n        values: '{values}'"


def ranks(slow: str, usual: str) -> str:
    """A slow rank 2 of four: it forwards longer, and the others wait in backward."""
    lines = []
    for rank in range(4):
        for stage, (own, others) in {"forward": (slow, usual), "backward": (usual, slow)}.items():
            labels = f'rank="{rank}",stage="{stage}",timer="train"'
            grows = own if rank == 2 else others
            lines.append(series(f"my_utils_stage_seconds_sum{{{labels}}}", f"0+{grows}x120"))
    return "\n".join(lines)


def check_alert(promtool: str, folder: Path, name: str, given: str, at: str, expected: str) -> None:
    shutil.copy(FOLDER / "rules.yml", folder)
    text = SLOW_RANK.format(series=given, at=at, name=name, alerts=expected)
    (folder / "test.yml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


def alert_text(name: str, labels: str, value: str = "") -> str:
    (rule,) = (rule for rule in rules() if rule.get("alert") == name)
    severity = rule["labels"]["severity"]
    texts = dict(rule["annotations"])
    for label, text in re.findall(r'(\w+): "([^"]*)"', labels):
        texts = {key: one.replace(f"{{{{ $labels.{label} }}}}", text) for key, one in texts.items()}
    texts = {key: re.sub(r"\{\{ \$value[^}]*\}\}", value, one) for key, one in texts.items()}
    shown = json.dumps(texts)
    return f"[{{exp_labels: {{severity: {severity}, {labels}}}, exp_annotations: {shown}}}]"


def test_the_rank_that_others_wait_for_is_the_slow_one(promtool: str, tmp_path: Path) -> None:
    labels = 'rank: "2", stage: "forward", timer: "train"'
    expected = alert_text("MyUtilsSlowRank", labels, "40%")
    check_alert(promtool, tmp_path, "MyUtilsSlowRank", ranks("18", "6"), "40m", expected)


def test_equal_ranks_are_quiet(promtool: str, tmp_path: Path) -> None:
    check_alert(promtool, tmp_path, "MyUtilsSlowRank", ranks("7", "6"), "40m", "[]")


@pytest.mark.parametrize(("at", "is_told"), [("20m", False), ("46m", True), ("3h", False)])
def test_a_run_that_makes_no_steps(at: str, is_told: bool, promtool: str, tmp_path: Path) -> None:
    """Steps for half an hour, and then none: told soon, and quiet once the run is long over."""
    given = series('my_utils_step{rank="0",timer="train"}', "0+30x60 1800+0x400")
    expected = alert_text("MyUtilsNoProgress", 'timer: "train"') if is_told else "[]"
    check_alert(promtool, tmp_path, "MyUtilsNoProgress", given, at, expected)


@pytest.mark.parametrize(("at", "is_told"), [("6h", False), ("7h", True)])
def test_a_run_that_becomes_slower(at: str, is_told: bool, promtool: str, tmp_path: Path) -> None:
    """One step a second for six hours, and then four in five."""
    given = series('my_utils_step{rank="0",timer="train"}', "0+30x720 21624+24x240")
    labels = 'timer: "train"'
    expected = alert_text("MyUtilsSlowerThanBefore", labels, "800m") if is_told else "[]"
    check_alert(promtool, tmp_path, "MyUtilsSlowerThanBefore", given, at, expected)
