"""The leak cases of all files."""

from __future__ import annotations

from . import capture_cases as capture_cases
from . import cases as cases
from . import compare_cases as compare_cases
from . import control_cases as control_cases
from . import forward_cases as forward_cases
from . import gpu_cases as gpu_cases
from . import hash_cases as hash_cases
from . import module_cases as module_cases
from . import recorder_cases as recorder_cases
from . import replace_cases as replace_cases
from . import stats_cases as stats_cases
from . import tensor_cases as tensor_cases
from . import timing_cases as timing_cases
from . import torch_ops_cases as torch_ops_cases
from . import view_cases as view_cases
from .harness import CASES as CASES
