"""Real ranks over gloo: what is equal is silent, and what was planted is named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from my_utils.tensors.passport.checkpoints import read_weights
from my_utils.tensors.passport.compare import check_replicas, compare_weights, format_lines

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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_accumulated_gradients_and_two_watches(tmp_path: Path) -> None:
    """Checks come after `no_sync`, where gradients of the ranks still differ; and each of two
    watches in one process has its files."""
    program = """
import time

def written(watch):
    # Checks are left out while several of them wait for a slow disk.
    while watch._writer is not None and watch._writer._jobs.qsize():
        time.sleep(0.001)

def accumulate(name, unreduced):
    GlobalLogger().setup(name, rank=rank, world_size=world, console=False)
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 4))
    update = adamw(model.parameters())
    watch = ReplicaWatch(model, 1, update, gradients=True)
    for step in range(1, 61):
        x = torch.randn(4, 8) + rank
        if step % 3:
            with model.no_sync():
                model(x).square().mean().backward()
        else:
            model(x).square().mean().backward()
            if (step, rank) == (unreduced, 1):
                model.module.bias.grad += 1
            update.step()
        watch.step()
        written(watch)
        if step % 3 == 0:
            update.zero_grad()
    watch.close()

def two(name):
    GlobalLogger().setup(name, rank=rank, world_size=world, console=False)
    torch.manual_seed(0)
    actor, critic = DDP(nn.Linear(8, 4)), DDP(nn.Linear(8, 1))
    watches = ReplicaWatch(actor, 2), ReplicaWatch(critic, 3)
    for step in range(1, 13):
        if (step, rank) == (8, 1):
            flip(critic.module.weight, 0, 3, 20)
        for watch in watches:
            watch.step()
            written(watch)
    for watch in watches:
        watch.close()

accumulate("clean", 0)
accumulate("unreduced", 30)
two("two")
"""
    run(program, 2, tmp_path)
    clean = found_in(tmp_path / "clean")
    assert (clean["status"], clean["checks"], clean["step"]) == ("equal", 60, 60), clean
    assert clean["notes"] == [
        "2 tensors not checked: gradients that are not reduced (no_sync) (gradient of weight, …)"
    ]
    who = "rank 0 against rank 1"
    assert f"step 28 to 30: gradient of bias, {who}" in texts(tmp_path / "unreduced")
    assert texts(tmp_path / "two") == [f"step 7 to 9: weight, {who}"]


@pytest.mark.thorough
def test_what_ddp_is_told_to_ignore_is_not_compared(tmp_path: Path) -> None:
    """Such as experts of which each rank has its own. Those whose reduction DDP delays are."""
    program = """
from my_utils.tensors import passport

def two(name):
    GlobalLogger().setup(name, rank=rank, world_size=world, console=False)
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    torch.manual_seed(rank)
    return nn.Sequential(shared, nn.Linear(4, 4))

net = two("ignored")
DDP._set_params_and_buffers_to_ignore_for_model(net, ["1.weight", "1.bias"])
model = DDP(net)
update = adamw(model.parameters())
watch = ReplicaWatch(model, 2, update, gradients=True)
for step in range(1, 5):
    update.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    update.step()
    watch.step()
watch.close()
passport(model).save("ignored/passport_rank{rank}.json")

# torch waits for no reduction of these, so that only what it broadcasts is equal for sure.
net = two("delayed")
model = DDP(net, delay_all_reduce_named_params=[("1.bias", net[1].bias)],
            param_to_hook_all_reduce=net[0].bias)
watch = ReplicaWatch(model)
watch.step()
watch.close()
"""
    run(program, 2, tmp_path)
    found = found_in(tmp_path / "ignored")
    assert (found["status"], found["checks"]) == ("equal", 3), found
    assert found["notes"] == [
        "10 tensors not checked: tensors that DDP is told to ignore (1.weight, …)"
    ]
    weights = read_weights(str(tmp_path / "ignored" / "passport_*.json"))
    assert list(check_replicas("", weights, weights.tensors)) == []
    found = found_in(tmp_path / "delayed")
    assert (found["status"], found["notes"]) == ("equal", []), found


@pytest.mark.thorough
def test_ranks_that_have_started_more_or_less_often(tmp_path: Path) -> None:
    """Two ranks, then three in the same folder, of which the last one counts its first attempt."""
    program = """
def fault(step, net, update):
    if (step, rank, world) == (15, 2, 3):
        flip(net.up.weight, 41, 7, 20)

train("run", fault=fault, steps=20)
"""
    for world in (2, 3):
        run(program, world, tmp_path)
    found = found_in(tmp_path / "run")
    assert texts(tmp_path / "run") == [
        "step 11 to 20 of attempt 2: up.weight, rows 40-43, rank 2 against the 2 others"
    ]
    assert not any("not compared with" in note for note in found["notes"])


@pytest.mark.thorough
def test_buffers_that_depend_on_the_data(tmp_path: Path) -> None:
    """Of an observer and an average; and a table that DDP does not broadcast."""
    program = """
from torch.ao.quantization import MovingAverageMinMaxObserver
from my_utils.tensors import passport

class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x - self.average + self.table

def train_buffers(name, drifts=False, **options):
    GlobalLogger().setup(name, rank=rank, world_size=world, console=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), MovingAverageMinMaxObserver(), Average())
    model = DDP(net, **options)
    update = adamw(model.parameters())
    watch = ReplicaWatch(model, 2)
    torch.manual_seed(rank)
    for step in range(1, 15):
        update.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        update.step()
        if drifts and (step, rank) == (5, 1):
            net[2].table[3] += 1
        watch.step()
    watch.close()
    passport(model).save(f"{name}/passport_rank{{rank}}.json")
    if rank == 0:
        torch.save(net.state_dict(), f"{name}/model.pt")

train_buffers("usual")
train_buffers("drifted", drifts=True, broadcast_buffers=False)
"""
    run(program, 2, tmp_path)
    note = "buffers differ between ranks, as those that depend on their data do: "
    for name in ("usual", "drifted"):
        found = found_in(tmp_path / name)
        assert [one for one in found["notes"] if one.startswith(f"{note}1.m")], found
        passports = read_weights(str(tmp_path / name / "passport_*.json"))
        same = compare_weights(passports, read_weights(str(tmp_path / name / "model.pt")))
        assert same.status == "equal", format_lines(same)
        assert any(one.startswith(f"A: {note}") for one in same.notes)
    assert found_in(tmp_path / "usual")["status"] == "equal"
    assert texts(tmp_path / "drifted") == ["step 5 to 6: 2.table, rank 0 against rank 1"]
