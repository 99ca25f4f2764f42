"""A program puts its log into the trace: a handler of the root logger records an instant for each line.

The profiler logs, too, also where it holds locks, and also about this very profiler.

Right: no deadlock, no recursion without end.
"""

import subprocess
import sys
import tempfile

PROGRAM = """
import logging, sys
import stepscope as sc
class Handler(logging.Handler):
    def emit(self, record):
        with sc.span("log"):
            sc.instant(record.getMessage(), level=record.levelname)
        sc.counter("lines", len(record.getMessage()))
        if profiler is not None:
            profiler.statistics(); str(profiler.report())
profiler = None
logging.basicConfig(level=logging.DEBUG, handlers=[Handler(), logging.StreamHandler()])
class Bad(sc.exporters.MemoryExporter):
    async def export(self, batch): raise ValueError("no")
memory = sc.exporters.MemoryExporter()
profiler = sc.trace(output_dir=sys.argv[1], exporters=[Bad(name="bad"), memory], schedule=sc.schedule(wait=1, warmup=0, active=1))
with profiler:
    for n in range(50):
        logging.info("step %d", n)
        profiler.step()
    profiler.flush()
profiler.step()
print("logged", sum(name.startswith("step ") for name in memory.names()))
"""
faults = []
with tempfile.TemporaryDirectory() as folder:
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=40)
        if done.returncode or "logged 25" not in done.stdout:
            faults.append(f"exit {done.returncode}: {done.stdout} {done.stderr[-1500:]}")
    except subprocess.TimeoutExpired as error:
        faults.append(f"hangs: {error.stdout} {error.stderr}")
print("WRONG: " + "; ".join(faults) if faults else "ok: the log is in the trace")
sys.exit(bool(faults))
