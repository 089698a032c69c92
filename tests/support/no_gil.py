"""What an interpreter built to run without a GIL does not have."""

import sysconfig

import pytest

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

needs_stacks = pytest.mark.skipif(
    FREE_THREADED, reason="stacks are not read in a free-threaded build: frames have another layout"
)
needs_gil_waits = pytest.mark.skipif(
    FREE_THREADED, reason="no thread waits for a GIL in a free-threaded build"
)
needs_interpreters = pytest.mark.skipif(
    FREE_THREADED, reason="a free-threaded build loads the module in the main interpreter only"
)
frees_at_once = pytest.mark.skipif(
    FREE_THREADED, reason="a free-threaded build leaves functions, and what they hold, to gc"
)
