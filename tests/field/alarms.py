"""A program has a timer whose handler raises, a thousand times a second: the way of time-limit libraries.

Right: what the handler raises reaches the program, which goes on; the trace is whole, and closing ends.
"""

import signal
import sys
import tempfile
import time

import stepscope


class Alarm(Exception):
    """Of the program's handler."""


def ring(number, frame):
    global rung
    if armed:
        raise Alarm
    rung += 1


memory = stepscope.exporters.MemoryExporter()
folder = tempfile.mkdtemp()
armed, rung = False, 0
raised = done = 0
signal.signal(signal.SIGALRM, ring)
schedule = stepscope.schedule(wait=1, warmup=1, active=3)
profiler = stepscope.trace(output_dir=folder, exporters=[memory], schedule=schedule, start=False)
profiler.start()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        armed = True
        with stepscope.span("work", number=done):
            for _ in range(300):
                pass
        profiler.step()
        armed = False
        done += 1
    except Alarm:
        armed = False
        raised += 1
signal.setitimer(signal.ITIMER_REAL, 0)
with stepscope.span("after"):
    pass
began = time.monotonic()
profiler.close()
took = time.monotonic() - began
report = str(profiler.report())
print(f"  {raised} alarms, {done} steps, closed in {took:.1f} s; {len(memory.names())} events")
faults = []
if raised < 100:
    faults.append(f"only {raised} alarms reached the program")
if took > 6:
    faults.append(f"closing took {took:.1f} s")
if "not balanced" in report or "unbalanced" in report:
    faults.append(report)
if profiler.step_num < done:
    faults.append(f"{profiler.step_num} steps, {done} were made")
print("WRONG: " + "; ".join(faults) if faults else "ok: alarms reach the program and cost nothing else")
sys.exit(bool(faults))
