"""Runs a training script under the recorder of `my_utils run`, with the truth taken beside it.

`python -m tests.support.run_truth HOW FOLDER "SCRIPT [ARGUMENTS]" ...`. The scripts in
tests/run/scripts wrap what should become a stage in `with span("forward"):` and call `iterated()`
where an iteration ends. HOW is "truth" (recorder and perf_counter in the same run), "recorded"
(recorder alone) or "bare". The result is JSON in FOLDER/<script>/result_<rank>.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from my_utils.record.log.logger import GlobalLogger
from my_utils.run.stages.recorder import arm
from tests.support.spans import tell


def digest(values: list[Any]) -> str:
    """One hash of tensors, state dicts and everything else that has a repr."""
    total = hashlib.sha256()
    for value in values:
        for part in value.state_dict().values() if hasattr(value, "state_dict") else [value]:
            text = part.detach().numpy().tobytes() if isinstance(part, torch.Tensor) else (
                repr(part).encode())  # fmt: skip
            total.update(text)
    total.update(torch.get_rng_state().numpy().tobytes())
    return total.hexdigest()


def run(how: str, script: str, folder: Path, arguments: list[str]) -> None:
    """Runs one script and leaves its result and its files in `folder`."""
    rank = int(os.environ.get("RANK", "0"))
    truth = tell(how == "truth")
    torch.manual_seed(7)
    recorder = None
    if how != "bare":

        def begin_rank() -> None:
            GlobalLogger().setup(folder, rank=rank, console=False)

        recorder = arm(begin_rank)
    sys.argv = [script, *arguments]
    names = runpy.run_path(script, run_name="__main__")
    result = {
        "hash": digest(names.get("results", [])),
        "iterations": truth.iterations,
        "spans": truth.spans,
    }
    if recorder is not None:
        recorder.disarm()
        GlobalLogger().close()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"result_{rank}.json").write_text(json.dumps(result))


def main() -> None:
    how, folder, *scripts = sys.argv[1:]
    torch.set_num_threads(1)
    for script in scripts:
        path, *arguments = script.split()
        run(how, path, Path(folder, Path(path).stem), arguments)


if __name__ == "__main__":
    main()
