"""Runs the Python blocks of pages, each page in a fork of this process, which has imported torch.

Reads lines of JSON, `[page, folder]`, and answers each with the exit status of its fork; what the
page printed is in `output.txt` of the folder.
"""

from __future__ import annotations

import doctest
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from ..conftest import ROOT
from .blocks import PYTHON, Block, blocks_of
from .setups import names_of

# Once for all pages; optimizers import dynamo at their first step.
for _module in ("torch._dynamo", "my_utils"):
    importlib.import_module(_module)

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_page(page: str, folder: str) -> None:
    os.chdir(folder)
    sys.argv = ["train.py"]
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    names = {"__name__": "__main__", **names_of(page)}
    for block in blocks_of(ROOT / page):
        if block.language in PYTHON and not block.why:
            run_block(block, names)


def run_block(block: Block, names: dict[str, Any]) -> None:
    if ">>>" in block.code:
        test = doctest.DocTestParser().get_doctest(
            block.code, names, str(block), block.page, block.line - 1
        )
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed
        assert failed == 0, f"{block} prints something else"
        names.update(test.globs)
        return
    blank_lines = "\n" * (block.line - 1)  # so that a traceback has the line of the page
    exec(compile(blank_lines + block.code, ROOT / block.page, "exec"), names)


def fork(page: str, folder: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run_page(page, folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)  # as a script ends, with what my_utils does then
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    for line in sys.stdin:
        page, folder = json.loads(line)
        print(json.dumps(fork(page, str(Path(folder)))), flush=True)


if __name__ == "__main__":
    main()
