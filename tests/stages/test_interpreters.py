"""Interpreters of one process that use timers, and forks in between, leave nothing behind."""

from __future__ import annotations

import json

import pytest

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

PROGRAM = """
import gc, json, os, sys
try:
    import _interpreters as interpreters
    options = {"config": "legacy"}
except ImportError:
    import _xxsubinterpreters as interpreters
    options = {} if sys.version_info < (3, 12) else {"isolated": False}

from my_utils import _core

# The package around the module loads much of Python, which leaks some 20 KiB an interpreter itself.
TIMED = f'''
import importlib.util, sys
spec = importlib.util.spec_from_file_location("my_utils._core", {_core.__file__!r})
core = importlib.util.module_from_spec(spec)
sys.modules["my_utils._core"] = core
spec.loader.exec_module(core)
timer = core.Timer("one")
for step in range(10):
    timer.set_step(step)
    timer.start("stage")
    timer.stop("stage")
timer.step()
'''

def used():
    gc.collect()
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as memory:
        return len(maps.readlines()), int(memory.read().split()[1]) * os.sysconf("SC_PAGESIZE")

own = _core.Timer("own")
found = []
for number in range(int(sys.argv[1])):
    interpreter = interpreters.create(**options)
    failed = interpreters.run_string(interpreter, TIMED)
    assert failed is None, failed
    interpreters.destroy(interpreter)
    own.start("stage")
    own.stop("stage")
    if number % 10 == 0:
        child = os.fork()
        if child == 0:
            own.start("of the child")
            own.stop("of the child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    if number in (19, int(sys.argv[1]) - 1):
        found.append(used())
assert own.aggregates()[0][1] == int(sys.argv[1]), own.aggregates()
print(json.dumps(found))
"""


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.thorough)])
def test_memory_and_mappings_stay(run_python: RunPython, count: int) -> None:
    done = run_python("-c", PROGRAM, str(count), timeout=900)
    assert done.returncode == 0, done.stderr
    (maps, memory), (maps_then, memory_then) = json.loads(done.stdout)
    assert abs(maps_then - maps) <= 8
    assert memory_then - memory < 2**20 + 8192 * count, (memory, memory_then)
