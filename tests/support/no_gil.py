"""What an interpreter built to run without a GIL does not have."""

import sysconfig

import pytest

needs_stacks = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="stacks are not read in a free-threaded build: its frames have another layout",
)
