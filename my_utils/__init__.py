"""Times, traces, captures, checks and compares PyTorch training runs.

The names below load on first use, so that `import my_utils` costs a few milliseconds and brings
neither torch nor numpy.

>>> import my_utils
>>> my_utils.__version__
'0.1.0'

PYTEST_DONT_REWRITE: pytest would warn where this was imported before it, as `my_utils run` does.
"""

from __future__ import annotations

from .core import step_requests as _step_requests
from .core.lazy_names import lazy_names

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable as _Callable

    from ._core import HookEvent as HookEvent, Timer as _Timer, timer as timer
    from .cluster.clock_sync.synchronizer import (
        ClockSynchronizer as ClockSynchronizer,
        SocketClockSynchronizer as SocketClockSynchronizer,
    )
    from .cluster.etcd.barrier_call import etcd_barrier as etcd_barrier
    from .cluster.sequence.pad import (
        pad_for_sequence_parallel as pad_for_sequence_parallel,
        remove_pad_by_value as remove_pad_by_value,
    )
    from .memory_snapshot import global_snapshotter as global_snapshotter
    from .musa.cmake_lists_generator import CMakeListsGenerator as CMakeListsGenerator
    from .musa.logger_util import LOGGER as LOGGER
    from .musa.musa_extension import (
        BuildExtension as BuildExtension,
        MUSAExtension as MUSAExtension,
    )
    from .musa.simple_porting import SimplePorting as SimplePorting
    from .profilers.capture.backends import (
        CaptureBackend as CaptureBackend,
        CudaProfilerBackend as CudaProfilerBackend,
        NoOpBackend as NoOpBackend,
    )
    from .profilers.capture.controller import CaptureController as CaptureController
    from .profilers.capture.forward_profile_hook import ForwardProfilerHook as ForwardProfilerHook
    from .profilers.capture.workers.profile_manager import ProfileManager as ProfileManager
    from .profilers.memory.gpu_mem_tracker import GPU_Performance_Tracker as GPU_Performance_Tracker
    from .profilers.memory.memory_snapshot import (
        MemorySnapshotter as MemorySnapshotter,
        NoOpMemorySnapshotter as NoOpMemorySnapshotter,
    )
    from .profilers.memory.oom_restore import (
        catch_oom as catch_oom,
        check_oom_flag as check_oom_flag,
        set_oom_flag as set_oom_flag,
    )
    from .profilers.modules.debug_layer import DebugLayer as DebugLayer
    from .profilers.modules.module_profiler import ModuleProfiler as ModuleProfiler
    from .profilers.ncu.analysis import (
        analyze_sm_throughput_from_csv as analyze_sm_throughput_from_csv,
        compare_kernel_metrics as compare_kernel_metrics,
    )
    from .profilers.operators.compare_mode import CompareWithCPU as CompareWithCPU
    from .profilers.operators.module_path import (
        ModuleInfo as ModuleInfo,
        open_module_tracker as open_module_tracker,
    )
    from .profilers.operators.nan_inf_mode import NanInfTracker as NanInfTracker
    from .profilers.operators.single_op import (
        compare_for_single_op as compare_for_single_op,
        nan_inf_track_for_single_op as nan_inf_track_for_single_op,
    )
    from .profilers.sweep.decorator import parametrize_shapes as parametrize_shapes
    from .profilers.torch_profiler.decorator import (
        profiler as profiler,
        step_profiler as step_profiler,
    )
    from .profilers.torch_profiler.dit_profiler import (
        FlexibleProfiler as FlexibleProfiler,
        create_profiler_context as create_profiler_context,
    )
    from .profilers.torch_profiler.profiler_wrapper import ProfilerWrapper as ProfilerWrapper
    from .profilers.torch_profiler.trainer_callback import ProfCallback as ProfCallback
    from .record.exporters.otlp import OtlpExporter as OtlpExporter
    from .record.exporters.targets import (
        PrometheusExporter as PrometheusExporter,
        TensorBoardExporter as TensorBoardExporter,
        WandbExporter as WandbExporter,
    )
    from .record.log.handlers import FlushingFileHandler as FlushingFileHandler
    from .record.log.logger import (
        GlobalLogger as GlobalLogger,
        SingletonMeta as SingletonMeta,
        get_global_logger as get_global_logger,
    )
    from .record.model_flops import set_model_flops as set_model_flops
    from .record.stages.timers import (
        DebuggingEvent as DebuggingEvent,
        MyTimer as MyTimer,
        NoOpMyTimer as NoOpMyTimer,
    )
    from .record.timing.gathered import ProfiledTime as ProfiledTime
    from .record.timing.manager import TimeManager as TimeManager, timer_wrap as timer_wrap
    from .run.attach import auto as auto
    from .tensors.checksums.batches import ChecksumUtils as ChecksumUtils
    from .tensors.dumps.config import DumpConfig as DumpConfig
    from .tensors.dumps.dump_utils import (
        DumperSingleton as DumperSingleton,
        UniversalDumper as UniversalDumper,
        UniversalLoader as UniversalLoader,
    )
    from .tensors.dumps.tensor_io import DumpTensorIO as DumpTensorIO
    from .tensors.random_states.control_random import ControlRandom as ControlRandom
    from .tensors.recordings.module_hook import ForwardTraceRecorder as ForwardTraceRecorder
    from .tensors.recordings.recording import TraceTensorMeta as TraceTensorMeta
    from .trace.csv2trace import csv_to_trace as csv_to_trace
    from .utils import global_timer as global_timer

__version__ = "0.1.0"

# Not all names: `from my_utils import *` would bring torch.
__all__ = [
    "ChecksumUtils",
    "DebuggingEvent",
    "GlobalLogger",
    "MyTimer",
    "NoOpMyTimer",
    "__version__",
    "csv_to_trace",
    "get_global_logger",
    "global_timer",
]

__getattr__, __dir__ = lazy_names(__name__)


def _load_captures() -> _Callable[[_Timer, int], None]:
    from .profilers.capture.on_demand.job import at_step

    return at_step


_step_requests.load = _load_captures
