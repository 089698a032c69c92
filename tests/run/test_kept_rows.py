"""How much `my_utils run` keeps of a rank's rows, and what a script's own setup keeps."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from ..conftest import RunPython

SCRIPT = """
    import json, sys
    import torch
    from my_utils.logger import GlobalLogger

    if "own" in sys.argv:
        GlobalLogger().setup("logs", console=False)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    settings = GlobalLogger()._settings
    print(json.dumps([settings.keep_csv_bytes, settings.max_csv_bytes, settings.windows_bytes]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("own", "kept"), [((), 2 << 30), (("own",), 16 << 30)])
def test_what_is_kept_of_a_rank(
    run_python: RunPython, tmp_path: Path, own: tuple[str, ...], kept: int
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = ["-m", "my_utils", "run", "--", sys.executable, "train.py", *own]
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    keep, part, windows = json.loads(done.stdout.splitlines()[0])
    assert (keep, windows) == (kept, 128 << 20)
    assert part <= keep // 4
    assert list((tmp_path / "logs").rglob("rank_0.100.windows"))
