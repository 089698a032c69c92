"""Which stage of a step takes the memory: python examples/where_memory_goes.py [LOG_DIR]

A step whose backward pass holds 150 MB. The peaks with their stages are logged; a plot and a CSV of
all samples are in LOG_DIR, and `python -m my_utils.csv2trace LOG_DIR` draws the curves with the
stages.
"""

import sys
import time

from my_utils import GlobalLogger, MyTimer
from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

log_dir = sys.argv[1] if len(sys.argv) > 1 else "logs"
GlobalLogger().setup(log_dir)
timer = MyTimer(tag="train")

with GPU_Performance_Tracker(f"{log_dir}/example", interval=0.02) as tracker:
    for step in range(5):
        timer.set_step(step)
        with timer.time_stage("forward"):
            activations = bytearray(20_000_000)
            time.sleep(0.05)
        with timer.time_stage("backward"):
            gradients = bytearray(130_000_000)
            time.sleep(0.05)
        del activations, gradients
        timer.step()

peak = tracker.peaks()["process_rss_bytes"]
print(f"{peak.value / 1e6:.0f} MB in {peak.stage}, step {peak.step}")
