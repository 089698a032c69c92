"""Calls collectives in every way there is; prints what it called, in order.

`torchrun collectives.py FILE`: rank 0 writes (text of the row, whether it is waited for) to FILE.
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

STEPS = 3

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
pair = mesh["tp"].get_group()
other = 1 - dist.get_rank(pair)  # its place in the pair
peer = dist.get_process_group_ranks(pair)[other]
called: list[tuple[str, bool]] = []


def note(text: str, *, awaited: bool = True) -> None:
    called.append((text, awaited))


def plain(ones: torch.Tensor) -> None:
    dist.all_reduce(ones)
    note("all_reduce world")
    work = dist.all_reduce(ones, group=pair, async_op=True)
    ones.clone()
    work.wait()
    note("all_reduce tp")
    dist.all_gather_into_tensor(torch.zeros(8), torch.ones(4), group=pair)
    note("all_gather tp")
    dist.all_gather([torch.zeros(4) for _ in range(world)], torch.ones(4))
    note("all_gather world")
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(4), group=pair)
    note("reduce_scatter tp")
    dist.broadcast(ones, src=0)
    note("broadcast world")
    dist.all_to_all_single(torch.zeros(4), torch.ones(4), group=pair)
    note("all_to_all tp")
    dist.barrier()
    note("barrier world")


def to_a_peer(ones: torch.Tensor) -> None:
    got = torch.zeros(4)
    if other:
        dist.send(ones, peer)
        note(f"send {peer}")
        dist.recv(got, peer)
        note(f"recv {peer}")
    else:
        dist.recv(got, peer)
        note(f"recv {peer}")
        dist.send(ones, peer)
        note(f"send {peer}")
    batch = [dist.P2POp(dist.isend, ones, peer), dist.P2POp(dist.irecv, got, peer)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    note(f"send {peer}")
    note(f"recv {peer}")


def functional(ones: torch.Tensor) -> None:
    whole = funcol.all_reduce(ones, "sum", pair)
    assert float(whole.sum()) == 8.0  # waits
    note("all_reduce tp")
    parts = funcol.reduce_scatter_tensor(torch.ones(4), "sum", 0, pair)
    assert float(parts.sum()) == 4.0
    note("reduce_scatter tp")


model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(STEPS):
    ones = torch.ones(4)
    plain(ones)
    to_a_peer(torch.ones(4))
    functional(torch.ones(4))
    model(ones).sum().backward()
    optimizer.step()
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(called, file)
dist.destroy_process_group()
