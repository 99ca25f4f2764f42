"""A program for mxnet.profiler with one line changed: its import."""

from __future__ import annotations

import time

from stepscope import mxnet as profiler  # was: from mxnet import profiler

profiler.set_config(filename="profile.json", profile_memory=False, aggregate_stats=True)
profiler.set_state("run")

training = profiler.Domain("training")
forward = training.new_task("forward")
batch = training.new_frame("batch")
examples = training.new_counter("examples", 0)
epoch = training.new_marker("epoch")

for number in range(20):
    if number % 10 == 0:
        epoch.mark("process", number=number // 10)
    with batch:
        forward.start()
        time.sleep(0.002)
        forward.stop()
        examples += 32
    if number == 4:
        profiler.pause()
        time.sleep(0.01)  # in the trace as a gap, and in no statistics
        profiler.resume()
    if number == 9:
        profiler.dump(finished=False)  # profile.json is complete now, and goes on to grow

profiler.dump()
print(profiler.dumps())
print(profiler.dumps(format="markdown", sort_by="avg"))
print(f"the slowest batch: {max(profiler.passes(batch), key=lambda one: one.duration_ns)}")
