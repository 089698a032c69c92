"""Which rank a process is: the logger's, torch.distributed's, the launcher's."""

from __future__ import annotations

from typing import Any

import pytest

from my_utils.core.ranks import check_rank, check_ranks, is_chosen

from ..conftest import RunPython

ASK = """
from my_utils.core.ranks import current_rank, world_size
print(current_rank(), world_size())
"""

SET_UP = """
import tempfile
from my_utils.logger import GlobalLogger
with tempfile.TemporaryDirectory() as folder:
    GlobalLogger().setup(folder, rank=1, world_size=4, console=False)
    print(current_rank(), world_size())
    GlobalLogger().close()
"""

GROUP = """
import tempfile
import torch.distributed as dist
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/s", 1), rank=0, world_size=1)
    print(current_rank(), world_size())
    dist.destroy_process_group()
"""


@pytest.mark.no_torch
def test_the_launchers_environment_then_the_logger(run_python: RunPython) -> None:
    result = run_python("-c", f"{ASK}\n{SET_UP}", env={"RANK": "3", "WORLD_SIZE": "8"})
    assert result.stdout == "3 8\n1 4\n", result.stderr


def test_torch_distributed(run_python: RunPython) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    result = run_python("-c", f"{ASK}\n{GROUP}", env={"RANK": "5", "WORLD_SIZE": "8"})
    assert result.stdout == "5 8\n0 1\n", result.stderr


@pytest.mark.no_torch
@pytest.mark.parametrize(
    ("ranks", "checked"), [(None, None), (2, (2,)), ([0, 3], (0, 3)), (range(2), (0, 1)), ([], ())]
)
def test_chosen_ranks(ranks: Any, checked: Any) -> None:
    assert check_ranks("ranks", ranks) == checked
    for rank in range(5):
        assert is_chosen(checked, rank) == (checked is None or rank in checked)


@pytest.mark.no_torch
@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ("0,1", TypeError, r"ranks must be None, an int or a list of int, not '0,1'"),
        (1.5, TypeError, r"ranks must be None, an int or a list of int, not 1\.5"),
        ([0, True], TypeError, r"each of ranks must be an int, not True"),
        ([-1], ValueError, r"each of ranks must be at least 0, not -1"),
    ],
)
def test_wrong_ranks(ranks: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_ranks("ranks", ranks)


@pytest.mark.no_torch
def test_a_wrong_rank() -> None:
    with pytest.raises(ValueError, match="rank must be at least 0, not -2"):
        check_rank("rank", -2)
