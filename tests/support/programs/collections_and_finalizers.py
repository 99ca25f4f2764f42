"""A program records the garbage collector by `gc.callbacks`, and its objects record in `__del__`, until the end.

The collector runs inside of any allocation, also inside of the profiler's own calls; `__del__` runs when the interpreter
has taken its modules apart.

Right: nothing dies or hangs, and each span is there.
"""

import re
import subprocess
import sys
import tempfile

PROGRAM = """
import gc, sys, time
import stepscope as sc
open_spans, counts, recording = [], {"recorded": 0, "finalized": 0}, False
def collected(phase, info):
    if phase == "start":
        open_spans.append(sc.span("gc", generation=info["generation"])); open_spans[-1].__enter__()
        sc.instant("gc began", kept=[1, 2, {"a": object()}])
    elif open_spans:
        open_spans.pop().__exit__(None, None, None)
        counts["recorded"] += recording
class Finalized:
    def __init__(self): self.me = self
    def __del__(self):
        with sc.span("del"):
            pass
        counts["finalized"] += 1
gc.callbacks.append(collected)
gc.set_threshold(50, 2, 2)
memory = sc.exporters.MemoryExporter()
with sc.trace(output_dir=sys.argv[1], exporters=[memory], schedule=sc.schedule(wait=0, warmup=0, active=10)) as p:
    recording = True
    for n in range(2000):
        with sc.span("step", values=[object() for _ in range(20)], name=str(n)):
            Finalized()
        p.step()
    recording = False
    gc.callbacks.remove(collected)
    # While another thread collects, `gc.collect()` does nothing.
    while gc.collect() or counts["finalized"] < 2000:
        time.sleep(0.001)
names = memory.names()
print("steps", names.count("step"), "del", names.count("del"), "gc", names.count("gc"), "of", counts["recorded"])
late = [Finalized() for _ in range(10)]
sys.stuck = late
"""
faults = []
with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    print(done.stdout, done.stderr[-2000:])
    if done.returncode:
        faults.append(f"exit {done.returncode}")
    counts = re.match(r"steps 2000 del 2000 gc (\d+) of (\d+)\n", done.stdout)
    # A span that is open while windows change has a part in each.
    if counts is None or not int(counts[1]) >= int(counts[2]) > 0:
        faults.append(done.stdout.strip())
print("WRONG: " + "; ".join(faults) if faults else "ok: all are there")
sys.exit(bool(faults))
