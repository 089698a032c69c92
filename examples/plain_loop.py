"""The shortest use: the stages of a loop, timed.

Afterwards `python -m my_utils.csv2trace logs -o trace.json` makes a trace of it.
"""

import time

from my_utils import GlobalLogger, MyTimer

GlobalLogger().setup("logs")
timer = MyTimer()

for step in range(10):
    timer.set_step(step)
    with timer.time_stage("load"):
        time.sleep(0.002)
    with timer.time_stage("compute"):
        time.sleep(0.005)
    timer.step()

timer.generate_report(".*", "logs/report.txt")
