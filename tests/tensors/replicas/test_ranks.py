"""Real ranks over gloo: what is equal is silent, and what was planted is named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from .trainings import found_in, run, texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_ranks(tmp_path: Path) -> None:
    program = """
def fault(step, net, update):
    if (step, rank) == (13, 1):
        flip(net.down.weight, 200, 3, 20)

def state_fault(step, net, update):
    if (step, rank) == (25, 1):
        flip(update.state[net.up.weight]["exp_avg"], 9, 3, 22)

train("clean_adamw")
train("clean_sgd", optimizer=sgd, seed=1)
train("flipped", fault=fault)
train("flipped_state", fault=state_fault)
train("unreduced", unreduced=[(17, 1, "head.weight")], optimizer=sgd)
train("plain", wrap=lambda net: net)
"""
    run(program, 2, tmp_path)
    for name in ("clean_adamw", "clean_sgd"):
        found = found_in(tmp_path / name)
        assert (found["status"], found["checks"], found["step"]) == ("equal", 5, 40), found
        assert found["notes"] == [
            "3 tensors not checked: statistics of BatchNorm, which differ between replicas by "
            "design (norm.running_mean, …)"
        ]
    who = "rank 0 against rank 1"
    # 256 bytes a row, 16 of which are a block.
    assert texts(tmp_path / "flipped") == [f"step 11 to 20: down.weight, rows 192-207, {who}"]
    by_kind = {one["kind"]: one for one in found_in(tmp_path / "flipped_state")["differences"]}
    assert by_kind["optimizer state"]["text"] == (
        f"replicas differ since step 21 to 30: exp_avg of up.weight, rows 8-11, {who}"
    )
    assert by_kind["parameters"]["tensors"][0]["name"] == "up.weight"
    assert f"step 11 to 20: head.weight, {who}" in texts(tmp_path / "unreduced")
    plain = found_in(tmp_path / "plain")
    assert plain["status"] == "not compared"
    assert any("no mesh, DDP or layout says" in note for note in plain["notes"])


def test_four_ranks(tmp_path: Path) -> None:
    program = """
def fault(step, net, update):
    if (step, rank) == (25, 2):
        flip(net.up.weight, 41, 7, 20)

def at_once(step, net, update):
    if (step, rank) == (1, 3):
        flip(net.up.weight, 1, 7, 20)

def of_shard(step, net, update):
    if (step, rank) == (35, 3):
        flip(net.up.weight, 9, 7, 22)

train("clean")
train("flipped", fault=fault)
train("at_once", fault=at_once, steps=12)
train("hsdp_clean", wrap=hsdp)
train("hsdp", wrap=hsdp, fault=of_shard, checks_state=False)
train("fsdp", wrap=fully_shard, steps=12)
"""
    run(program, 4, tmp_path)
    assert found_in(tmp_path / "clean")["status"] == "equal"
    assert texts(tmp_path / "flipped") == [
        "step 21 to 30: up.weight, rows 40-43, rank 2 against the 3 others"
    ]
    assert texts(tmp_path / "at_once") == [
        "step 1, the first check of these tensors: up.weight, rows 0-3, rank 3 against the 3 others"
    ]
    clean = found_in(tmp_path / "hsdp_clean")
    assert (clean["status"], clean["checks"]) == ("equal", 5), clean
    # The second half of 64 rows is of ranks 1 and 3.
    assert texts(tmp_path / "hsdp") == [
        "step 31 to 40: up.weight, rows 40-43, rank 1 against rank 3"
    ]
    fsdp = found_in(tmp_path / "fsdp")
    assert fsdp["status"] == "not compared"
    assert any("no other rank has these parts" in note for note in fsdp["notes"])
