"""Interpreters of one process that use timers, and forks in between, leave nothing behind."""

from __future__ import annotations

import json

import pytest

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

PROGRAM = '''
import gc, json, os, sys
try:
    import _interpreters as interpreters
    options = {"config": "legacy"}
except ImportError:
    import _xxsubinterpreters as interpreters
    options = {} if sys.version_info < (3, 12) else {"isolated": False}

from my_utils import _core

# The package around the module loads much of Python, which leaks some 20 KiB an interpreter itself.
LOADED = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("my_utils._core", {_core.__file__!r})
core = importlib.util.module_from_spec(spec)
sys.modules["my_utils._core"] = core
"""
TIMED = LOADED + """
spec.loader.exec_module(core)
core.HookEvent("event")
timer = core.Timer("one")
for step in range(10):
    timer.set_step(step)
    timer.start("stage")
    timer.stop("stage")
timer.step()
"""

def used():
    gc.collect()
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as memory:
        return len(maps.readlines()), int(memory.read().split()[1]) * os.sysconf("SC_PAGESIZE")

def check_fork():
    child = os.fork()
    if child == 0:
        own.start("of the child")
        own.stop("of the child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def grown(code, count):
    """Mappings and bytes that came with the interpreters after the twentieth."""
    for number in range(count):
        interpreter = interpreters.create(**options)
        failed = interpreters.run_string(interpreter, code)
        assert failed is None, failed
        interpreters.destroy(interpreter)
        own.start("stage")
        own.stop("stage")
        if number % 10 == 0:
            check_fork()
        if number == 19:
            before = used()
    return [now - then for now, then in zip(used(), before)]

count = int(sys.argv[1])
own = _core.Timer("own")
found = [grown(code, count) for code in (LOADED, TIMED)]
assert own.aggregates()[0][1] == 2 * count, own.aggregates()
print(json.dumps(found))
'''


# CPython 3.12 and 3.13 leave 0.2 to 0.3 MiB behind with each interpreter, whatever it did.
@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.thorough)])
def test_memory_and_mappings_stay(run_python: RunPython, count: int) -> None:
    done = run_python("-c", PROGRAM, str(count), timeout=900)
    assert done.returncode == 0, done.stderr
    (_, without), (maps, memory) = json.loads(done.stdout)
    assert abs(maps) <= 8
    assert memory - without < 2**20 + 65536 * count, (memory, without)
