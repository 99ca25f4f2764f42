"""A program has a timer whose handler raises, a thousand times a second: the way of time-limit libraries.

Right: what the handler raises reaches the program, which goes on; each step of the windows that were recorded has its span,
the report says how many windows were left out, as they began faster than they could be sorted, and closing ends.
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
print(f"  {raised} alarms, {done} steps, closed in {took:.1f} s; {len(memory.windows)} windows, {len(memory)} events")
faults = []
if raised < 100:
    faults.append(f"only {raised} alarms reached the program")
if took > 6:
    faults.append(f"closing took {took:.1f} s")
accounts = next(line for line in report.splitlines() if line.startswith("  accounts"))
left_out = profiler.statistics().windows_left_out
reported = f"  left out  {left_out:,} window" in report and "left out" in accounts
if not accounts.removeprefix("  accounts").strip().startswith("balanced") or reported != bool(left_out):
    faults.append(f"{left_out} windows were left out; {report}")
for window in memory.windows:
    named = zip(memory.events(window.index), memory.names(window.index), strict=True)
    began = [event["ts"] for event, name in named if name == "work"]
    steps = window.steps if window.complete else ()
    empty = [step.number for step in steps if not any(step.start_ns <= at <= step.end_ns for at in began)]
    if empty:
        faults.append(f"steps {empty} of window {window.index} have no span")
if len(memory.windows) < 100:
    faults.append(f"only {len(memory.windows)} windows are there")
if profiler.step_num < done:
    faults.append(f"{profiler.step_num} steps, {done} were made")
print("WRONG: " + "; ".join(faults) if faults else "ok: alarms reach the program and cost nothing else")
sys.exit(bool(faults))
