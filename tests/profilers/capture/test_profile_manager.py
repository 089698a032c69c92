"""Capture windows across workers: what a configuration asks for, and what the workers answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import random
import re
import subprocess
import sys
import textwrap
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed")
pytest.importorskip("yaml", reason="pyyaml is not installed")

from my_utils.core import warnings as _warnings
from my_utils.profilers.capture.workers import calls as _worker_calls
from my_utils.profiling.backends import CaptureBackend, NoOpBackend
from my_utils.profiling.capture_controller import (
    CaptureController,
    capture_hook,
    set_default_controller,
    set_position,
)
from my_utils.profiling.capture_worker import CaptureWorker, arm_capture, capture_outcomes
from my_utils.profiling.ProfileManager import ConfigError, ProfileManager

from ...conftest import RunPython
from ...support.live_ranks import wait_until

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]

ROLES = {"actor": {"functions": ["actor.generate", "actor.update"]}}


def manager_of(**fields: Any) -> ProfileManager:
    return ProfileManager({"tool": "none", "steps": [10], "roles": ROLES, **fields})


def steps_of(manager: ProfileManager, until: int = 60) -> list[int]:
    return [step for step in range(until) if manager.should_capture_this_iter(step)]


@pytest.fixture(autouse=True)
def no_controller() -> Iterator[None]:
    yield
    controller = set_default_controller(None)
    if controller is not None:
        controller.disarm()
    set_position(None)


# --- steps ---


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        (None, []),
        ([], []),
        (3, [3]),
        ("4-6", [4, 5, 6]),
        (" 7 ", [7]),
        ([1, "4-5", 9], [1, 4, 5, 9]),
        ({"every": 25}, [25, 50]),
        ({"every": 25, "first": 0}, [0, 25, 50]),
        ({"every": 2, "first": 3, "last": 7}, [3, 5, 7]),
        ({"first": 3, "last": 5}, [3, 4, 5]),
        ([2, {"every": 30, "last": 30}], [2, 30]),
    ],
)
def test_steps(steps: Any, chosen: list[int]) -> None:
    manager = manager_of(steps=steps)
    assert steps_of(manager) == chosen
    assert manager.enabled() == bool(chosen)
    for step in range(60):
        assert len(manager.build_specs_to_arm_at_iter(step, 2)) == (step in chosen)


def test_nothing_is_enabled_by_nothing() -> None:
    for manager in (
        ProfileManager(None),
        ProfileManager({}),
        manager_of(enable=False),
        manager_of(roles={}),
        manager_of(roles={"actor": {"functions": ["f"], "enable": False}}),
    ):
        assert not manager.enabled()
        assert not manager.should_capture_this_iter(10)
        assert manager.build_specs_to_arm_at_iter(10, 1) == []
        assert manager.arm_iter(10, 1, {}) == []


# --- windows ---


def test_a_whole_step() -> None:
    (spec,) = manager_of(nvtx="capture").build_specs_to_arm_at_iter(10, 4)
    assert spec == {
        "window_id": "step10.actor",
        "start_profile_names": ["actor.generate"],
        "start_iter": 10,
        "start_mb": None,
        "stop_policy": "ON_STOP_PROFILE_NAME",
        "stop_profile_names": ["actor.update"],
        "stop_iter": 10,
        "stop_mb": 3,
        "roles": ["actor"],
        "ranks": [0],
        "nvtx": "capture",
        "backend": {"tool": "none", "output_dir": "profiles", "options": {}},
    }


@pytest.mark.parametrize(
    ("chosen", "count", "start", "stop"),
    [
        (None, None, None, None),
        (None, 1, None, None),
        (None, 3, None, 2),
        ([1], 3, 1, 1),
        (["last"], 3, 2, 2),
        (["first", "last"], 3, 0, 2),
        ([1, "last"], 8, 1, 7),
        ([0, 5], 3, 0, 0),
        ([5], 3, 2, 2),
        (["last"], None, None, None),
    ],
)
def test_micro_batches_of_a_step(chosen: Any, count: int, start: int, stop: int) -> None:
    (spec,) = manager_of(micro_batches=chosen).build_specs_to_arm_at_iter(10, count)
    assert (spec["start_mb"], spec["stop_mb"]) == (start, stop)
    CaptureController(NoOpBackend()).arm(spec)


def test_discrete_windows(caplog: pytest.LogCaptureFixture) -> None:
    _warnings.forget("profile_manager_micro_batches_actor")
    roles = {"actor": {"functions": ["actor.generate", "update"], "micro_batches": [0, 9, "last"]}}
    specs = manager_of(discrete=True, roles=roles).build_specs_to_arm_at_iter(10, 4)
    assert [spec["window_id"] for spec in specs] == [
        "step10.actor.generate.mb0",
        "step10.actor.generate.mb3",
        "step10.actor.update.mb0",
        "step10.actor.update.mb3",
    ]
    assert [spec["start_mb"] for spec in specs] == [0, 3, 0, 3]
    assert {spec["stop_policy"] for spec in specs} == {"ON_TRIGGER_FUNC_EXIT"}
    assert "asks for micro-batches [0, 3, 9], and there are 4" in caplog.text
    (one, _) = manager_of(discrete=True).build_specs_to_arm_at_iter(10, None)
    assert one["window_id"] == "step10.actor.generate" and one["start_mb"] is None


def test_steps_in_a_row_share_a_window() -> None:
    manager = manager_of(steps=["10-12", 13, 20], continuous_steps=True)
    assert steps_of(manager) == [10, 11, 12, 13, 20]
    found = {
        step: [(spec["window_id"], spec["start_iter"], spec["stop_iter"]) for spec in specs]
        for step in range(30)
        if (specs := manager.build_specs_to_arm_at_iter(step, 1))
    }
    assert found == {10: [("steps10-13.actor", 10, 13)], 20: [("step20.actor", 20, 20)]}


def test_a_job_that_resumes_within_a_window() -> None:
    manager = manager_of(steps="10-13", continuous_steps=True)
    worker = Local()
    for step in range(11, 16):
        manager.arm_iter(step, 1, {"actor": worker})
    assert worker.ids() == [["steps11-13.actor"]]
    manager.arm_iter(10, 1, {"actor": worker})  # a loop that goes back
    assert worker.ids()[1:] == [["steps10-13.actor"]]


def test_ranks_of_roles() -> None:
    roles = {
        "first": {"functions": ["a"]},
        "some": {"functions": ["b"], "ranks": [1, 3]},
        "all": {"functions": ["c"], "all_ranks": True},
    }
    specs = manager_of(roles=roles).build_specs_to_arm_at_iter(10, 1)
    assert [(spec["roles"], spec["ranks"]) for spec in specs] == [
        (["first"], [0]), (["some"], [1, 3]), (["all"], None),
    ]  # fmt: skip


def test_every_spec_is_armed_and_meets_its_functions() -> None:
    for discrete in (False, True):
        manager = manager_of(steps="2-3", discrete=discrete)
        controller = CaptureController(NoOpBackend())
        open_at = []
        for step in range(5):
            for spec in manager.build_specs_to_arm_at_iter(step, 2):
                controller.arm(spec)
            for name in ("actor.generate", "actor.update"):
                for number in range(2):
                    meta = {"iter": step, "microbatch_index": number}
                    with controller.hook(name, role="actor", rank=0, **meta):
                        if controller.window:
                            open_at.append((step, name, number))
        assert len(open_at) == 8
        assert set(controller.outcomes.values()) == {"done"}
        assert len(controller.outcomes) == (8 if discrete else 2)


# --- configurations ---


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        textwrap.dedent(
            """
            tool: [nsys, torch]
            output_dir: traces
            options:
              torch: {record_shapes: true}
            steps:
              - 10
              - {every: 20, last: 40}
            roles:
              actor:
                functions: [actor.update]
                all_ranks: true
            """
        ),
        encoding="utf-8",
    )
    for config in (path, str(path), path.read_text(encoding="utf-8")):
        manager = ProfileManager(config)
        assert steps_of(manager) == [10, 20, 40]
        (spec,) = manager.build_specs_to_arm_at_iter(20, 1)
        assert spec["backend"] == {
            "tool": ["nsys", "torch"], "output_dir": "traces",
            "options": {"torch": {"record_shapes": True}},
        }  # fmt: skip
        assert json.loads(json.dumps(spec)) == spec
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n", encoding="utf-8")
    assert not ProfileManager(empty).enabled()


def test_from_other_mappings(tmp_path: Path) -> None:
    config: ChainMap[str, Any] = ChainMap({"steps": (3,), "output_dir": tmp_path}, {"roles": ROLES})
    assert steps_of(ProfileManager(config)) == [3]


BAD = [
    ("steps: ten", 1, "steps", "'first-last', not 'ten'"),
    ("tool: nsys\nsteps:\n  - 1\n  - -2", 4, "steps[1]", "expected int >= 0"),
    ("steps: [5, 9-2]", 1, "steps[1]", "the last step, 2, is before the first, 9"),
    ("steps: {every: 0}", 1, "steps.every", "expected int >= 1"),
    ("steps:\n  - {first: 3}", 2, "steps[0]", "'every', or 'first' and 'last'"),
    ("steps:\n  - {evry: 3}", 2, "steps[0].evry", "unknown field"),
    ("steps: 1\ncolour: red", 2, "colour", "unknown field"),
    ("tool: nvprof", 1, "tool", "tool must be one of 'nsys'"),
    ("tool: 3", 1, "tool", "expected str | array, got int"),
    ("tool: torch\noptions: {nsys: {}}", 2, "options", "not for 'nsys'"),
    ("options: 5", 1, "options", "expected object, got int"),
    ("micro_batches: [0, middle]", 1, "micro_batches[1]", "invalid enum value 'middle'"),
    ("roles:\n  actor:\n    enable: true", 2, "roles.actor.functions", "this field is needed"),
    ("roles:\n  actor: {functions: []}", 2, "roles.actor.functions", "length >= 1"),
    ("roles:\n  a:\n    functions: [f]\n    ranks: []", 4, "roles.a.ranks", "names no rank"),
    ("steps: [{every: 2}, {every: 2, first: 1}]\ncontinuous_steps: true", 2, "continuous_steps",
     "without an end"),
    ("tool: torch\noptions: {torch: {record_shape: true}}", 2, "options", "not 'record_shape'"),
    ("tool: torch\noptions: {torch: {with_stack: 1}}", 2, "options", "with_stack of torch must be"),
    ("roles:\n  actor:\n    functions: [f]\n    ranks: [0, x]", 4, "roles.actor.ranks[1]",
     "expected int, got str"),
    ("roles:\n  actor:\n    functions: [f]\n    ranks: [0]\n    all_ranks: yes", 4,
     "roles.actor.ranks", "not both"),
    ("roles:\n  actor:\n    functions: [f]\n    rank: [0]", 4, "roles.actor.rank", "unknown field"),
    ("roles: [actor]", 1, "roles", "expected object, got array"),
    ("steps: 1\ncontinuous_steps: true\nroles:\n  a: {functions: [f], discrete: true}", 2,
     "continuous_steps", "role 'a' are discrete"),
    ("steps: {every: 1}\ncontinuous_steps: true", 2, "continuous_steps", "without an end"),
    ("steps: 1\nsteps: 2", 2, "steps", "is there twice"),
    ("- steps", 1, "", "must be a mapping, not list"),
    ("steps:\n  - [1\ntool: nsys", 3, "", "is not YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "field", "message"), BAD, ids=[row[0] for row in BAD])
def test_wrong_files(text: str, line: int, field: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        ProfileManager(path)
    assert (caught.value.field, caught.value.line) == (field, line)
    assert str(caught.value).startswith(f"{path}, line {line}: {field}")


def test_wrong_text() -> None:
    with pytest.raises(ConfigError, match="the configuration, line 2: tool: ") as caught:
        ProfileManager("steps: 3\ntool: vtune\n")
    assert caught.value.line == 2


def test_without_msgspec(run_python: RunPython) -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from my_utils.profiling.ProfileManager import ProfileManager\n"
        "ProfileManager({})"
    )
    result = run_python("-c", code)
    assert result.returncode == 1
    assert "ProfileManager needs msgspec" in result.stderr
    assert "pip install msgspec" in result.stderr


def test_rows_of_steps_of_any_length() -> None:
    """Against the steps one by one; and a large `last` takes no longer."""
    chance = random.Random(3)
    for _ in range(60):
        steps = [
            {"every": chance.randint(1, 4), "first": (first := chance.randint(0, 20)),
             "last": first + chance.randint(0, 30)}
            for _ in range(chance.randint(1, 4))
        ]  # fmt: skip
        manager = manager_of(steps=steps, continuous_steps=True)
        chosen = set(steps_of(manager, 80))
        for step in chosen:
            if step - 1 in chosen:
                continue
            last = next(end for end in range(step, 90) if end + 1 not in chosen)
            (spec,) = manager.build_specs_to_arm_at_iter(step)
            assert spec["stop_iter"] == last, steps
    far = 10**15
    both = [{"every": 2, "last": far}, {"every": 2, "first": 1, "last": far}]
    (spec,) = manager_of(steps=both, continuous_steps=True).build_specs_to_arm_at_iter(1)
    assert spec["stop_iter"] == far


def test_names_of_verl_are_told_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ProfileManager({
            "tool": None, "save_path": "traces", "profile_continuous_steps": True,
            "global_tool_config": {"nsys": {}}, "steps": [1], "finish_hook_cmd": "true",
            "roles": {"actor": {"functions": ["f"], "ranks": [], "tool_config": {}}},
        })  # fmt: skip
    for text in (
        "save_path is output_dir here", "profile_continuous_steps is continuous_steps here",
        "finish_hook_cmd is finish.command here",
        "global_tool_config is options here", "tool: null is enable: false here",
        "tool_config is options here", "ranks: [] of role actor names no rank",
        "ProfileManager.from_verl(config)",
    ):  # fmt: skip
        assert text in str(caught.value)
    with pytest.raises(ConfigError, match="tool npu is not there; ours are nsys"):
        ProfileManager({"tool": "npu"})


# --- configurations of verl ---

VERL = """
global_profiler:
  _target_: verl.utils.profiler.ProfilerConfig
  tool: torch
  steps: [2, 3]
  profile_continuous_steps: true
  save_path: outputs/profile
  finish_hook_cmd: "echo done"
  global_tool_config:
    nsys: {discrete: false}
actor_rollout_ref:
  actor:
    strategy: fsdp
    profiler:
      tool: ${oc.select:global_profiler.tool,null}
      enable: true
      all_ranks: false
      ranks: [0, 2]
      save_path: ${oc.select:global_profiler.save_path,null}
      tool_config:
        nsys: {discrete: "${oc.select:global_profiler.global_tool_config.nsys.discrete}"}
        torch: {contents: [cuda, shapes], discrete: false}
  rollout:
    profiler:
      enable: ${oc.select:actor_rollout_ref.actor.profiler.enable,false}
      all_ranks: true
      ranks: ${oc.select:actor_rollout_ref.rollout.ranks,[]}
      tool_config: {torch: {contents: [stack], discrete: false}}
  ref:
    profiler: {enable: true, all_ranks: false, ranks: []}
critic:
  profiler: {enable: false, all_ranks: true}
"""


def test_a_configuration_of_verl(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ppo_trainer.yaml"
    path.write_text(VERL, encoding="utf-8")
    manager = ProfileManager.from_verl(path)
    assert steps_of(manager) == [2, 3]
    rollout, actor = manager.build_specs_to_arm_at_iter(2)
    assert (rollout["roles"], rollout["ranks"], rollout["stop_iter"]) == (["rollout"], None, 3)
    assert (actor["roles"], actor["ranks"]) == (["actor"], [0, 2])
    assert actor["start_profile_names"] == ["actor_compute_log_prob"]
    assert actor["stop_profile_names"] == ["actor_update"]
    assert actor["backend"] == {
        "tool": "torch", "output_dir": "outputs/profile",
        "options": {"torch": {
            "record_shapes": True, "with_stack": True, "activities": ["cpu", "cuda"],
        }},
    }  # fmt: skip
    assert "role ref is enabled and names no rank" in caplog.text
    assert "no counterpart" not in caplog.text
    own = ProfileManager.from_verl(VERL, functions={"actor": ["update"]})
    assert own.build_specs_to_arm_at_iter(2)[0]["stop_profile_names"] == ["update"]


def test_what_verl_has_and_we_ignore_is_named(caplog: pytest.LogCaptureFixture) -> None:
    tokens = {"profile_token_start": 3, "profile_token_end": 5}
    ProfileManager.from_verl({
        "global_profiler": {
            "tool": "torch", "steps": [2], "relocate_results": True, "finish_hook_cmd": "true",
        },
        "actor": {"profiler": {
            "enable": True, "all_ranks": True, "tool_config": {"torch": tokens},
        }},
        "critic": {"profiler": {
            "enable": True, "all_ranks": True, "finish_hook_cmd": "false",
        }},
    })  # fmt: skip
    for name in (
        "global_profiler.relocate_results", *(f"actor.tool_config.{name}" for name in tokens),
        "actor.finish_hook_cmd",
    ):  # fmt: skip
        assert name in caplog.text
    assert "global_profiler.finish_hook_cmd" not in caplog.text


SCHEDULE = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 3, "repeat": 2}


def of_verl(schedule: dict[str, Any], **run: Any) -> ProfileManager:
    roles = {"all_ranks": True, "enable": True}
    return ProfileManager.from_verl({
        "global_profiler": {
            "tool": "torch", "steps": [2, 3], **run,
            "global_tool_config": {"torch": {"schedule": schedule}},
        },
        "actor": {"profiler": roles}, "rollout": {"profiler": roles}, "ref": {"profiler": roles},
    })  # fmt: skip


def test_a_schedule_of_verl(caplog: pytest.LogCaptureFixture) -> None:
    manager = of_verl(SCHEDULE, profile_continuous_steps=True)
    windows = {spec["window_id"]: spec for spec in manager.build_specs_to_arm_at_iter(3, 12)}
    assert [*windows] == ["step3.rollout", "step3.ref", "step3.actor.mb3-5", "step3.actor.mb8-10"]
    actor = windows["step3.actor.mb8-10"]
    assert (actor["start_mb"], actor["stop_mb"], actor["stop_iter"]) == (8, 10, 3)
    assert actor["start_profile_names"] == actor["stop_profile_names"] == ["actor_update"]
    assert "global_profiler.profile_continuous_steps beside a schedule" in caplog.text
    for off in ({}, {**SCHEDULE, "active": 0}, {"wait": 1}, {**SCHEDULE, "active": None}):
        whole = of_verl(off).build_specs_to_arm_at_iter(3, 12)
        assert [spec["window_id"] for spec in whole][-1] == "step3.actor"


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_a_schedule_has_the_micro_batches_that_torch_records() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from torch.profiler import ProfilerAction, schedule

    chance = random.Random(5)
    for _ in range(200):
        fields = {name: chance.randint(0, 4) for name in ("skip_first", "wait", "warmup", "repeat")}
        fields["active"] = chance.randint(1, 4)
        count = chance.randint(1, 40)
        role = {"functions": ["a", "b"], "micro_batches": fields}
        manager = manager_of(steps=1, roles={"actor": role})
        action = schedule(**fields)
        recorded = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        theirs = [number for number in range(count) if action(number) in recorded]
        specs = manager.build_specs_to_arm_at_iter(1, count)
        ours = [n for spec in specs for n in range(spec["start_mb"], spec["stop_mb"] + 1)]
        assert ours == theirs, (fields, count)
        for spec in specs[:-1]:
            assert action(spec["stop_mb"]) == ProfilerAction.RECORD_AND_SAVE
    (whole,) = manager.build_specs_to_arm_at_iter(1)
    assert (whole["start_profile_names"], whole["start_mb"]) == (["a"], None)


def test_windows_of_a_schedule_hold_their_calls() -> None:
    class Calls(CaptureBackend):
        def __init__(self) -> None:
            self.windows: list[list[int]] = []
            self.is_open = False

        def start(self) -> None:
            self.is_open = True
            self.windows.append([])

        def stop(self) -> None:
            self.is_open = False

    backend = Calls()
    controller = CaptureController(backend)
    role = {"functions": ["look", "update"], "micro_batches": SCHEDULE}
    for spec in manager_of(steps=1, roles={"actor": role}).build_specs_to_arm_at_iter(1, 9):
        controller.arm({**spec, "backend": None, "ranks": None})
    for number in range(9):
        for name in ("look", "update"):
            with controller.hook(name, role="actor", iter=1, microbatch_index=number):
                if name == "update" and backend.is_open:
                    backend.windows[-1].append(number)
    assert backend.windows == [[3, 4, 5], [8]]
    assert set(controller.outcomes.values()) == {"done"}


@pytest.mark.parametrize("tool", ["null", "nsys", "torch_memory", "npu", "precision_debugger"])
def test_tools_of_verl(tool: str) -> None:
    text = VERL.replace("tool: torch", f"tool: {tool}", 1).replace("continuous_steps: true", "x: 1")
    text = text.replace("nsys: {discrete: false}", "nsys: {discrete: true}")
    if tool in ("npu", "precision_debugger"):
        with pytest.raises(ConfigError, match=f"global_profiler.tool: unknown tool {tool}"):
            ProfileManager.from_verl(text)
        return
    manager = ProfileManager.from_verl(text)
    assert manager.enabled() == (tool != "null")
    if tool == "nsys":  # discrete: one window a function
        assert len(manager.build_specs_to_arm_at_iter(2)) == 3


def test_a_profiler_of_verl_alone_and_what_is_none() -> None:
    alone = ProfileManager.from_verl({"tool": "nsys", "enable": True, "ranks": [1], "steps": [4]})
    assert alone.build_specs_to_arm_at_iter(4)[0]["roles"] == ["worker"]
    with pytest.raises(ConfigError, match="global_profiler: this field is needed"):
        ProfileManager.from_verl({"trainer": {}})


# --- the command after the last step ---

FINISH = 'echo "$VERL_PROFILE_RANK $VERL_PROFILE_TOOL $VERL_PROFILE_SAVE_PATH" >> ran'


def lines_of(path: Path, count: int) -> list[str]:
    """Once the file has so many."""
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= count)
    return sorted(path.read_text().splitlines())


@pytest.mark.parametrize(
    ("finish", "ranks"),
    [({}, [0, 2]), ({"ranks": [1]}, [1]), ({"all_ranks": True}, [0, 1, 2])],
)
def test_the_command_runs_once_after_the_last_step(
    finish: dict[str, Any], ranks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workers = [Worker(rank) for rank in range(3)]
    manager = ProfileManager({
        "tool": "none", "output_dir": "traces", "steps": ["1-2", {"every": 4, "last": 7}],
        "roles": {"actor": {"functions": ["f"], "ranks": [0, 2]}},
        "finish": {"command": FINISH, **finish},
    })  # fmt: skip
    for it in range(6):
        assert not (tmp_path / "ran").exists(), it
        manager.arm_iter(it, None, {"actor": workers, "reward": workers})
        for rank in (0, 2):
            with workers[rank].capture.hook("f", iter=it, rank=rank, role="actor"):
                pass
    expected = [f"{rank} none {tmp_path}/traces" for rank in ranks]
    assert lines_of(tmp_path / "ran", len(ranks)) == expected
    manager.arm_iter(6, None, {"actor": workers})
    manager.outcomes()
    assert lines_of(tmp_path / "ran", len(ranks)) == expected
    workers[0].capture.disarm()


def test_the_command_after_a_run_that_ends_with_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    worker = Worker(7)
    manager = ProfileManager.from_verl({
        "global_profiler": {"tool": "nsys", "steps": [3], "finish_hook_cmd": f"{FINISH}; exit 4"},
        "actor": {"profiler": {"enable": True, "ranks": [7]}},
    })  # fmt: skip
    manager.arm_iter(3, None, {"actor": worker})
    manager.outcomes()
    assert not (tmp_path / "ran").exists()  # the window still waits
    worker.capture.disarm()
    manager.outcomes()
    assert lines_of(tmp_path / "ran", 1) == [f"7 nsys {tmp_path}/profiles"]
    wait_until(lambda: "exit status 4: echo" in caplog.text)


def test_workers_that_cannot_run_the_command(caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_of(tool="none", steps=1, roles=TWO, finish={"command": "true"})
    manager.arm_iter(1, None, {"actor": Local()})
    manager.arm_iter(2, None, {})
    assert "'Local' object has no attribute 'finish_capture'" in caplog.text


# --- workers of this process ---


class Local:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[list[dict[str, Any]]] = []

    def arm_capture(self, specs: list[dict[str, Any]]) -> None:
        self.sent.append(specs)

    def ids(self) -> list[list[str]]:
        return [[spec["window_id"] for spec in specs] for specs in self.sent]


TWO = {
    "rollout": {"functions": ["rollout.generate"], "ranks": [0, 1]},
    "actor": {"functions": ["actor.update"], "ranks": [0, 2]},
}


def test_roles_with_groups_of_their_own() -> None:
    rollout, actor = Local(), Local()
    answers = manager_of(roles=TWO).arm_iter(10, 2, {"rollout": rollout, "actor": actor, "x": 1})
    assert [(answer.roles, answer.status, answer.worker) for answer in answers] == [
        (("rollout",), "armed", rollout), (("actor",), "armed", actor),
    ]  # fmt: skip
    assert (rollout.ids(), actor.ids()) == ([["step10.rollout"]], [["step10.actor"]])


def test_roles_that_share_a_group_are_armed_once() -> None:
    group = Local()
    (answer,) = manager_of(roles=TWO).arm_iter(10, 2, {"actor": group, "rollout": group})
    assert answer.roles == ("rollout", "actor")
    ((spec,),) = group.sent
    assert spec["window_id"] == "step10.rollout+actor"
    assert (spec["roles"], spec["ranks"]) == (["rollout", "actor"], [0, 1, 2])
    assert spec["start_profile_names"] == ["rollout.generate"]
    assert spec["stop_profile_names"] == ["actor.update"]
    CaptureController(NoOpBackend()).arm(spec)
    discrete = Local()
    manager_of(roles=TWO, discrete=True).arm_iter(10, None, dict.fromkeys(TWO, discrete))
    assert discrete.ids() == [["step10.rollout.generate", "step10.actor.update"]]


def test_a_list_of_workers_has_its_ranks() -> None:
    workers = [Local() for _ in range(4)]
    answers = manager_of(roles=TWO).arm_iter(10, 2, dict.fromkeys(TWO, workers))
    assert [worker.ids() for worker in workers] == [
        [["step10.rollout+actor"]], [["step10.rollout"]], [["step10.actor"]], [],
    ]  # fmt: skip
    assert len(answers) == 3
    (spec,) = workers[2].sent[0]
    assert spec["ranks"] is None and spec["backend"]["rank"] == 2


def test_roles_without_workers(caplog: pytest.LogCaptureFixture) -> None:
    answers = manager_of(roles=TWO).arm_iter(10, 2, {"rollout": None, "actor": []})
    assert [(answer.roles, answer.status) for answer in answers] == [
        (("rollout",), "missing"), (("actor",), "missing"),
    ]  # fmt: skip
    assert "rollout: missing (it has no workers)" in caplog.text
    assert "actor: missing (none of its ranks is among 0 workers)" in caplog.text


def test_a_method_of_another_name() -> None:
    class Group:
        def capture_arm(self, specs: list[dict[str, Any]]) -> list[int]:
            return [len(specs)]

    manager = ProfileManager({"steps": 1, "roles": ROLES}, arm_method="capture_arm")
    (answer,) = manager.arm_iter(1, 1, {"actor": Group()})
    assert (answer.status, answer.answer) == ("armed", [1])
    (answer,) = manager.arm_iter(1, 1, {"actor": Local()})
    assert answer.status == "failed" and "capture_arm" in answer.detail


class Clock:
    """In place of the module `time`: goes on by what is slept."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_answers_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Futures as those of concurrent.futures, and RRefs as those of torch's RPC."""
    clock = Clock()
    monkeypatch.setattr(_worker_calls, "time", clock)

    class Later:
        def done(self) -> bool:
            return clock.now > 0.1

        def wait(self) -> dict[str, str]:
            return {"w": "armed"}

    class Reference:
        def rpc_async(self, timeout: float) -> Reference:
            assert timeout > 0.5
            return self

        def arm_capture(self, specs: list[dict[str, Any]]) -> Later:
            return Later()

    class Group:
        def arm_capture(self, specs: list[dict[str, Any]]) -> list[Any]:
            never: concurrent.futures.Future[None] = concurrent.futures.Future()
            broken: concurrent.futures.Future[None] = concurrent.futures.Future()
            broken.set_exception(ConnectionResetError("gone"))
            return [Later(), never, broken, {"w": "ValueError: roles"}, None]

    manager = ProfileManager({"steps": 1, "roles": TWO}, timeout_s=0.5)
    first, second = manager.arm_iter(1, 1, {"rollout": Reference(), "actor": Group()})
    assert (first.status, first.answer) == ("armed", {"w": "armed"})
    assert second.status == "dead" and not second.ok
    assert second.detail == (
        "worker 1 busy: no answer within 0.5 s; worker 2 dead: ConnectionResetError: gone; "
        "worker 3 failed: w: ValueError: roles"
    )
    assert 0.5 <= clock.now < 0.6, "one limit for all"


# --- the worker's side ---


class Worker(CaptureWorker):
    def __init__(self, rank: int) -> None:
        self.capture_rank = rank
        self.open: list[tuple[int, str]] = []

    @capture_hook("rollout.generate")
    def generate(self, step: int) -> None:
        self.open.append((step, str(self.capture.window)))


def test_a_worker_arms_what_is_for_it() -> None:
    worker = Worker(rank=1)
    manager = manager_of(steps="2-3", roles={"rollout": TWO["rollout"]})
    for step in range(5):
        manager.arm_iter(step, None, {"rollout": worker})
        set_position(step)
        worker.generate(step)
    assert [name for _, name in worker.open] == [
        "None", "None", "step2.rollout", "step3.rollout", "None",
    ]  # fmt: skip
    assert worker.capture.outcomes == {"step2.rollout": "done", "step3.rollout": "done"}
    other = Worker(rank=2)
    (answer,) = manager.arm_iter(2, None, {"rollout": other})
    assert answer.ok and answer.answer == {"step2.rollout": "not for rank 2"}


def test_what_a_worker_cannot_arm(caplog: pytest.LogCaptureFixture) -> None:
    controller = CaptureController(NoOpBackend())
    answers = arm_capture(
        [
            {"window_id": "a", "start_profile_names": ["f"]},
            {"window_id": "b", "start_profile_names": "f"},
            {"window_id": "c", "start_profile_names": ["f"], "colour": "red"},
            "d",  # type: ignore[list-item]
            {"window_id": "e", "start_profile_names": ["f"], "backend": {"tool": "nvprof"}},
        ],
        controller,
    )
    assert list(answers) == ["a", "b", "c", "3", "e"]
    assert answers["a"] == "armed"
    assert answers["b"].startswith("TypeError: start_profile_names must be a list of str")
    assert "no field 'colour'" in answers["c"]
    assert answers["3"] == "TypeError: a spec must be a mapping, not 'd'"
    assert "backend: tool must be one of" in answers["e"]
    assert controller.armed == ["a"]
    assert caplog.text.count("could not be armed") == 4


def test_no_ranks_are_all_ranks() -> None:
    controller = CaptureController(NoOpBackend())
    spec = {"window_id": "w", "start_profile_names": ["f"], "ranks": []}
    assert arm_capture([spec], controller, rank=5) == {"w": "armed"}
    controller.close()


def test_an_async_method_is_awaited() -> None:
    class Later(Local):
        async def arm_capture(self, specs: list[dict[str, Any]]) -> dict[str, str]:  # type: ignore[override]
            await asyncio.sleep(0)
            super().arm_capture(specs)
            return {spec["window_id"]: "ValueError: no room" for spec in specs}

    worker = Later()
    (answer,) = manager_of().arm_iter(10, 1, {"actor": worker})
    assert worker.ids() == [["step10.actor"]]
    assert (answer.status, answer.detail) == ("failed", "step10.actor: ValueError: no room")

    async def in_a_loop() -> str:
        return manager_of().arm_iter(10, 1, {"actor": Later()})[0].status

    assert asyncio.run(in_a_loop()) == "failed"


def test_roles_with_and_without_micro_batches() -> None:
    """The rollout runs once a step; its window is done, and not overrun."""
    workers = {name: Playing(name) for name in ("rollout", "actor")}
    manager = manager_of(
        roles={
            "rollout": {"functions": ["rollout.generate"]},
            "actor": {"functions": ["actor.forward", "actor.update"]},
        }
    )
    for step in range(9, 13):
        manager.arm_iter(step, 4, workers)
        workers["rollout"].play(step, "rollout.generate")
        for number in range(4):
            workers["actor"].play(step, "actor.forward", microbatch_index=number)
            workers["actor"].play(step, "actor.update", microbatch_index=number)
    assert [(one.window_id, one.status) for one in manager.outcomes()] == [
        ("step10.rollout", "done"), ("step10.actor", "done"),
    ]  # fmt: skip


def test_functions_that_run_once() -> None:
    roles = {"rollout": {"functions": ["generate"], "micro_batches": [], "discrete": True}}
    (spec,) = manager_of(roles=roles).build_specs_to_arm_at_iter(10, 4)
    assert (spec["window_id"], spec["start_mb"]) == ("step10.rollout.generate", None)


class Playing:
    """A worker of this process, with its own controller."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.controller = CaptureController(NoOpBackend())

    def arm_capture(self, specs: list[dict[str, Any]]) -> dict[str, str]:
        return arm_capture(specs, self.controller, rank=0)

    def capture_outcomes(self, window_ids: list[str]) -> dict[str, str]:
        return capture_outcomes(window_ids, self.controller)

    def play(self, step: int, name: str, **meta: int) -> None:
        with self.controller.hook(name, role=self.role, rank=0, iter=step, **meta):
            pass


def test_outcomes_come_back(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Playing):
        def arm_capture(self, specs: list[dict[str, Any]]) -> dict[str, str]:
            self.controller.backend = None  # type: ignore[assignment]
            return super().arm_capture([{**spec, "backend": None} for spec in specs])

    roles: dict[str, dict[str, Any]] = {
        name: {"functions": [f"{name}.begin", f"{name}.end"]}
        for name in ("fine", "typo", "broken", "idle", "mute", "elsewhere")
    }
    roles["typo"]["functions"][1] = "typo.ennd"
    roles["elsewhere"]["ranks"] = [7]
    workers: dict[str, Any] = {name: Playing(name) for name in roles}
    workers["broken"] = Broken("broken")
    workers["mute"] = Local()
    manager = manager_of(roles=roles)
    for step in range(10, 14):
        manager.arm_iter(step, 1, workers)
        for name in ("fine", "typo", "broken"):
            workers[name].play(step, f"{name}.begin")
            workers[name].play(step, f"{name}.end")
    found = {one.window_id.split(".")[1]: one for one in manager.outcomes()}
    assert {name: one.status for name, one in found.items()} == {
        "fine": "done", "typo": "overrun", "broken": "failed", "idle": "never opened",
        "mute": "unknown",
    }  # fmt: skip
    assert found["typo"].detail == "no hook has reported 'typo.ennd'"
    assert "AttributeError" in found["broken"].detail
    assert found["idle"].detail == "no hook has reported 'idle.begin', 'idle.end'"
    assert "capture window step10.typo: overrun (no hook has reported 'typo.ennd')" in caplog.text
    assert found["fine"].ok and found["fine"].is_final


def test_outcomes_of_dead_and_of_slow_workers() -> None:
    class Slow(Playing):
        answer: concurrent.futures.Future[dict[str, str]] = concurrent.futures.Future()

        def capture_outcomes(self, window_ids: list[str]) -> Any:
            return self.answer

    class Dead(Playing):
        def capture_outcomes(self, window_ids: list[str]) -> Any:
            raise ConnectionResetError("gone")

    roles = {name: {"functions": [name]} for name in ("slow", "dead")}
    manager = manager_of(roles=roles)
    workers = {"slow": Slow("slow"), "dead": Dead("dead")}
    manager.arm_iter(10, 1, workers)
    manager.arm_iter(11, 1, workers)  # does not wait
    assert [one.status for one in manager.outcomes(timeout_s=0.0)] == ["busy", "dead"]
    Slow.answer.set_result({"step10.slow": "done"})
    assert [one.status for one in manager.outcomes(timeout_s=0.0)] == ["done", "dead"]


def test_steps_of_numpy() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    manager = manager_of(steps=[numpy.int64(10)])
    assert manager.should_capture_this_iter(numpy.int64(10))
    (spec,) = manager.build_specs_to_arm_at_iter(numpy.int64(10), numpy.int32(4))
    assert type(spec["start_iter"]) is int and type(spec["stop_mb"]) is int
    assert json.loads(json.dumps(spec)) == spec
    worker = Local()
    manager.arm_iter(numpy.int64(10), numpy.int64(4), {"actor": worker})
    assert len(worker.sent) == 1
    set_position(numpy.int64(3), numpy.int32(1))


def test_hooks_play_the_role_of_their_windows() -> None:
    worker = Worker(rank=0)
    spec = {"window_id": "w", "start_profile_names": ["rollout.generate"], "roles": ["rollout"]}
    worker.arm_capture([spec])
    worker.generate(0)
    assert worker.open == [(0, "w")]


# --- workers of Ray ---

RAY = """
import json, os, sys, time
import ray
from my_utils.profiling.ProfileManager import ProfileManager
from my_utils.profiling.capture_controller import capture_hook, set_position
from my_utils.profiling.capture_worker import CaptureWorker

folder = sys.argv[1]
path = os.environ["PYTHONPATH"]
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
    object_store_memory=100 * 2**20,
    runtime_env={"env_vars": {"PYTHONPATH": path}},
)

@ray.remote(num_cpus=0)
class Both(CaptureWorker):
    '''Two roles in one process.'''
    @capture_hook("rollout.generate", role="rollout")
    def generate(self):
        return sum(range(1000))

    @capture_hook("actor.update", role="actor")
    def update(self):
        return sum(range(1000))

    def step(self, step):
        set_position(step)
        self.generate()
        self.update()

    def outcomes(self):
        return self.capture.outcomes

@ray.remote(num_cpus=0)
class Critic(CaptureWorker):
    @capture_hook("critic.forward")
    def forward(self, until=None):
        while until is not None and not os.path.exists(until):
            time.sleep(0.05)

    def step(self, step, until=None):
        set_position(step)
        self.forward(until)

    def outcomes(self):
        return self.capture.outcomes

config = {
    "tool": "torch" if TORCH else "none",
    "output_dir": folder,
    "steps": [1, 3],
    "roles": {
        "rollout": {"functions": ["rollout.generate"], "all_ranks": True},
        "actor": {"functions": ["actor.update"], "all_ranks": True},
        "critic": {"functions": ["critic.forward"], "all_ranks": True},
    },
    "finish": {"command": 'echo "$VERL_PROFILE_PID" >> ' + folder + '.finished', "ranks": [1]},
}
patient, short = ProfileManager(config, timeout_s=60), ProfileManager(config, timeout_s=30)
free_now = folder + ".free"

def kill(actor):
    '''Until it is dead it may answer once more.'''
    ray.kill(actor)
    while True:
        try:
            ray.get(actor.outcomes.remote())
        except ray.exceptions.ActorDiedError:
            return
        except ray.exceptions.RayActorError:
            pass
        time.sleep(0.05)

both = [Both.options(name=f"both{n}").remote() for n in range(2)]
critics = [Critic.remote() for _ in range(3)]
ray.get([worker.step.remote(-1) for worker in both + critics])
again = [ray.get_actor(f"both{n}") for n in range(2)]  # other handles of the same actors
groups = {"rollout": both, "actor": again, "critic": critics}
for step in range(4):
    if step == 3:
        kill(critics[0])
        busy = critics[1].step.remote(2, free_now)
    answers = (patient if step < 3 else short).arm_iter(step, 1, groups)
    for answer in answers:
        print(json.dumps([step, answer.roles, answer.status, answer.detail, answer.answer]))
    free = critics if step < 3 else critics[2:]
    ray.get([worker.step.remote(step) for worker in both + free])
open(free_now, "w").close()
ray.get([busy, critics[1].step.remote(3)])
short.arm_iter(4, 1, groups)
finished = folder + ".finished"
while not os.path.exists(finished) or open(finished).read().count("\\n") < 2:
    time.sleep(0.05)
for worker in both + critics[1:]:
    print(json.dumps(ray.get(worker.outcomes.remote())))
ray.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.timeout(320)
def test_with_actors_of_ray(tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    torch_is_there = has_torch()
    env = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    script = RAY.replace("TORCH", str(torch_is_there))
    result = run_python("-c", script, str(tmp_path / "traces"), env=env, timeout=300)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(("[", "{"))]
    both = ["rollout", "actor"]
    for step in (1, 3):
        found = [line[1:] for line in lines if isinstance(line, list) and line[0] == step]
        assert [line[0] for line in found] == [both, both, ["critic"], ["critic"], ["critic"]]
        statuses = [line[1] for line in found]
        if step == 1:
            assert statuses == ["armed"] * 5
            assert found[0][3] == {"step1.rollout+actor": "armed"}
        else:
            assert statuses == ["armed", "armed", "dead", "busy", "armed"], found
            pids = (tmp_path / "traces.finished").read_text(encoding="utf-8").split()
            assert len({*pids}) == 2  # of the second worker in each list
            assert "ActorDied" in found[2][2] and "no answer within 30 s" in found[3][2]
    outcomes = [line for line in lines if isinstance(line, dict)]
    shared = {"step1.rollout+actor": "done", "step3.rollout+actor": "done"}
    critic = {"step1.critic": "done", "step3.critic": "done"}
    assert outcomes == [shared, shared, critic, critic]  # the busy one armed its window later
    if torch_is_there:
        names = [f"step{step}.rollout_actor__rank{rank}.json" for step in (1, 3) for rank in (0, 1)]
        names += ["step1.critic__rank0.json"]
        written = os.listdir(tmp_path / "traces")
        assert {name.replace("+", "_") for name in written} >= set(names), written
        for name in written:
            json.loads((tmp_path / "traces" / name).read_text(encoding="utf-8"))


RPC = """
import os, sys
import torch.distributed.rpc as rpc
from my_utils.profiling.ProfileManager import ProfileManager
from my_utils.profiling.capture_controller import capture_hook, set_position
from my_utils.profiling.capture_worker import CaptureWorker

class Worker(CaptureWorker):
    capture_rank = 0

    @capture_hook("forward")
    def forward(self):
        return self.capture.window

    def step(self, step):
        set_position(step)
        return self.forward()

rank = int(sys.argv[1])
options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[2], num_worker_threads=4)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    roles = {"actor": {"functions": ["forward"]}, "critic": {"functions": ["critic"]}}
    manager = ProfileManager({"tool": "none", "steps": [1, 2], "roles": roles}, timeout_s=30)
    worker = rpc.remote("worker1", Worker)
    for step in range(3):
        for answer in manager.arm_iter(step, 1, {"actor": worker, "critic": [rpc]}):
            print(step, answer.status, answer.answer)
        print(step, worker.rpc_sync().step(step))
    del worker
rpc.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_over_torch_rpc(tmp_path: Path, run_python: RunPython) -> None:
    if not has_torch():
        pytest.skip("torch is not installed")
    script = tmp_path / "program.py"
    script.write_text(RPC, encoding="utf-8")
    env = {
        "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def work(rank: int) -> Any:
        return run_python(str(script), str(rank), str(tmp_path / "store"), env=env, timeout=300)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        driver, worker = pool.map(work, range(2))
    assert driver.returncode == worker.returncode == 0, driver.stderr + worker.stderr
    assert driver.stdout.splitlines() == [
        "0 None",
        "1 armed {'step1.actor': 'armed'}",
        "1 failed None",
        "1 step1.actor",
        "2 armed {'step2.actor': 'armed'}",
        "2 failed None",
        "2 step2.actor",
    ]


def has_torch() -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_messages_go_to_the_logger_that_is_given(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("of the test")
    manager = ProfileManager({"steps": 1, "roles": ROLES}, logger=logger)
    with caplog.at_level(logging.INFO, logger="of the test"):
        manager.arm_iter(1, 1, {"actor": Local()})
        manager.arm_iter(1, 1, {})
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("of the test", "INFO"), ("of the test", "WARNING"),
    ]  # fmt: skip
    assert "capture windows of iteration 1: actor: armed" in caplog.text


ALIASES = "a0: &a0 {x: 1}\n"
YAML_BOMBS = {
    "of aliases": ALIASES
    + "".join(f"a{at}: &a{at} [{', '.join(3 * [f'*a{at - 1}'])}]\n" for at in range(1, 40)),
    "of merges": ALIASES
    + "".join(f"a{at}: &a{at} {{<<: [{', '.join(3 * [f'*a{at - 1}'])}]}}\n" for at in range(1, 40)),
    "that contains itself": "a: &a [*a]\n",
    "of brackets": "[" * 2_000,
    "of a long text": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_a_small_configuration_has_few_values(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(YAML_BOMBS[bomb])
    with pytest.raises(ConfigError, match=r"config.yaml: (has more than|is nested too deep)"):
        ProfileManager(path)
