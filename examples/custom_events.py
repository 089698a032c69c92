"""Adds moments, counters, overlapping work and arrows to a trace with timed stages.

usage: custom_events.py [LOG_DIR]

A small pipeline: a thread prepares batches, the main thread consumes them. Open the result with

    python -m my_utils.csv2trace LOG_DIR -o trace.pftrace --format perfetto --open
"""

import queue
import random
import sys
import threading
import time

from my_utils import GlobalLogger, MyTimer

STEPS = 12

log_dir = sys.argv[1] if len(sys.argv) > 1 else "logs"
logger = GlobalLogger()
logger.setup(log_dir)
timer = MyTimer(tag="pipeline")


@timer.time_stage("prepare")
def prepare(number: int) -> list[int]:
    time.sleep(0.004)
    return [number] * 4


def produce(batches: "queue.Queue[tuple[int, list[int]]]") -> None:
    for number in range(STEPS):
        batch = prepare(number)
        # An arrow from here to where the batch is consumed: start and end share the id.
        logger.flow_start("batch", number)
        batches.put((number, batch))


def consume(step: int, batches: "queue.Queue[tuple[int, list[int]]]") -> None:
    with timer.time_stage("wait"):
        number, batch = batches.get()
    with timer.time_stage("compute"):
        logger.flow_end("batch", number)
        time.sleep(0.001 * len(batch))
    # A counter: one value under its own name, or several series at once.
    logger.counter("queue", batches.qsize())
    logger.counter("loss", {"train": 3.0 / (step + 1), "valid": 3.5 / (step + 1)})


batches: "queue.Queue[tuple[int, list[int]]]" = queue.Queue(maxsize=3)
producer = threading.Thread(target=produce, args=(batches,), name="producer")
producer.start()

for step in range(STEPS):
    timer.set_step(step)
    # Work that outlives the stage it began in, and may overlap with others of its name.
    logger.async_start("upload", step, {"bytes": random.randrange(1000)})
    with timer.time_stage("iter"):
        consume(step, batches)
    if step % 4 == 3:
        # A moment, with whatever is worth knowing about it.
        logger.instant("checkpoint", {"step": step, "path": f"model_{step}.pt"})
    if step >= 2:
        logger.async_end("upload", step - 2)
    timer.step()

for late in (STEPS - 2, STEPS - 1):
    logger.async_end("upload", late)

# An event with its own time, from a log of another program, say.
logger.log_profile_event(
    timestamp=0.0, timestamp_ns=time.time_ns(), step=STEPS, event_name="imported",
    event_type="INSTANT", metadata={"source": "scheduler"},
)  # fmt: skip

producer.join()
timer.step()
print(f"python -m my_utils.csv2trace {log_dir} -o trace.pftrace --format perfetto --open")
