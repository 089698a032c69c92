"""Work on big tensors is split over torch's threads; the result does not show how."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from my_utils.tensors import torch_ops as _torch_ops  # noqa: E402

from ..conftest import RunPython  # noqa: E402
from ..support.variants import gate_runs  # noqa: E402

pytestmark = pytest.mark.c_code

_torch_ops.register()
OPS = torch.ops.my_utils
NAMES = sorted(_torch_ops.REDUCTIONS)

# Longer than what one thread takes, and no multiple of any block.
SIZE = 3_000_001


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def values() -> Any:
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    x[1_000_003], x[2_999_999] = float("nan"), float("inf")
    return x


def same(left: Any, right: Any) -> bool:
    return bool(torch.equal(left.view(torch.int64), right.view(torch.int64)))


@pytest.mark.parametrize("name", NAMES)
def test_threads_do_not_show(name: str, values: Any, threads: Callable[[int], None]) -> None:
    operator = getattr(OPS, name)
    for x in (values, values[::2], values[: SIZE - 1].reshape(1000, -1).t(), values.double()):
        results = []
        for count in (1, 2, 3, 7):
            threads(count)
            results.append(operator(x))
        assert all(same(result, results[0]) for result in results[1:])


def test_python_threads_at_once(values: Any) -> None:
    wanted = {name: getattr(OPS, name)(values) for name in NAMES}
    wrong: list[str] = []

    def work() -> None:
        for _ in range(10):
            wrong.extend(
                name for name in NAMES if not same(getattr(OPS, name)(values), wanted[name])
            )

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_inside_a_backward(values: Any) -> None:
    """The autograd engine calls from threads of its own."""
    wanted = OPS.tensor_hash(values)
    seen = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(OPS.tensor_hash(values)))
    y.sum().backward()
    assert len(seen) == 1
    assert same(seen[0], wanted)


FORKED = """
import os, torch
from my_utils.tensors import torch_ops as _torch_ops
from my_utils import tensors
_torch_ops.register()
x = torch.arange(3_000_001, dtype=torch.float32)
{before}
def facts():
    ops = torch.ops.my_utils
    return [
        tensors.tensor_hash(x).content,
        ops.tensor_hash(x).tolist(),
        ops.stats(x).tolist(),
        ops.nan_inf_count(x).tolist(),
    ]
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, repr(facts()).encode())
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert os.read(read, 10_000).decode() == repr(facts())
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    ["", "torch.ones(3_000_000).sum()", "torch.ops.my_utils.stats(x)"],
    ids=["cold", "warm_pool", "warm_operators"],
)
def test_a_forked_child_works_alone(before: str, run_python: RunPython) -> None:
    """torch's pool has no threads there, and waiting for them would take for ever."""
    result = run_python("-c", FORKED.format(before=before))
    assert (result.stdout, result.stderr) == ("same\n", "")


IN_WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset
from my_utils.tensors import tensor_hash

class Digests(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return tensor_hash(torch.full((2_000_000,), float(index))).content

if __name__ == "__main__":
    got = [
        content
        for batch in DataLoader(Digests(), num_workers=1, multiprocessing_context="{method}")
        for content in batch
    ]
    assert got == [Digests()[index] for index in range(4)]
    print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", gate_runs(("fork",), ("fork", "spawn")))
def test_workers_of_a_data_loader(method: str, run_python: RunPython, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(IN_WORKERS.format(method=method), encoding="utf-8")
    result = run_python(os.fspath(program))
    assert result.stdout == "same\n", result.stderr
