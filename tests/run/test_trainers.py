"""Trainers and loaders of others: their iterations and stages."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.run.test_stages_of_scripts import check, check_exclusive, result, rows_of, run, stages

pytestmark = pytest.mark.timeout(300)

LATER = ("input", "forward", "loss", "backward", "optimizer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "needs", "backwards", "first_forward"),
    [
        ("hf_trainer", "transformers", 2, 1),
        pytest.param("accelerated", "accelerate", 2, 1, marks=pytest.mark.thorough),
        # The module's own call is never seen.
        pytest.param("lightning_fit", "lightning", 1, 2, marks=pytest.mark.thorough),
    ],
)
def test_each_iteration_has_its_stages(
    script: str, needs: str, backwards: int, first_forward: int, tmp_path: Path
) -> None:
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    run("truth", tmp_path / "truth", f"{script}.py")
    run("bare", tmp_path / "bare", f"{script}.py")
    folder = tmp_path / "truth" / script
    truth = result(folder)
    assert truth["hash"] == result(tmp_path / "bare" / script)["hash"]
    rows = rows_of(folder)
    [end] = [row for row in rows if row.name == "my_utils.run_end"]
    assert int(end.metadata["iterations"]) == truth["iterations"]
    recorded = stages(rows)
    check_exclusive(recorded)
    calls = Counter((row.step, row.name) for row in recorded)
    for step in range(first_forward, truth["iterations"]):
        assert calls[step, "backward"] == calls[step, "forward"] == backwards, step
        assert all(calls[step, name] for name in LATER), step


LOADERS = {"hf_datasets": "datasets", "webdataset_shards": "webdataset", "dcp": "torch"}


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs with the truth and without the recorder, of what is installed."""
    folder = tmp_path_factory.mktemp("loaders")
    scripts = [f"{script}.py" for script, needs in LOADERS.items() if find_spec(needs)]
    for how in ("truth", "bare"):
        run(how, folder / how, *scripts)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("script", LOADERS)
def test_input_and_checkpoints_of_others_are_stages(script: str, loaders: Path) -> None:
    """Each sample or batch that the script takes is one, whichever way it takes it."""
    if find_spec(LOADERS[script]) is None:
        pytest.skip(f"needs {LOADERS[script]}")
    check(loaders / "truth" / script)
    truth, bare = (result(loaders / how / script)["hash"] for how in ("truth", "bare"))
    assert truth == bare


@pytest.mark.thorough
def test_batches_of_ray_data_are_stages(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="needs Ray Data")
    run("truth", tmp_path, "ray_data.py")
    check(tmp_path / "ray_data")
