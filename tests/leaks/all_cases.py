"""The leak cases of all files."""

from __future__ import annotations

from . import (
    capture_cases as capture_cases,
    cases as cases,
    compare_cases as compare_cases,
    control_cases as control_cases,
    forward_cases as forward_cases,
    gpu_cases as gpu_cases,
    hash_cases as hash_cases,
    module_cases as module_cases,
    recorder_cases as recorder_cases,
    run_cases as run_cases,
    stacks_cases as stacks_cases,
    stats_cases as stats_cases,
    tensor_cases as tensor_cases,
    timing_cases as timing_cases,
    torch_ops_cases as torch_ops_cases,
    view_cases as view_cases,
)
from .harness import CASES as CASES
