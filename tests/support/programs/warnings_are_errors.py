"""A test suite runs a service with `-X dev -W error`: every forgotten resource and deprecated call is an error.

Right: no warning comes from the profiler, whatever is used of it.
"""

import subprocess
import sys
import tempfile

PROGRAM = """
import asyncio, sys, gc
import stepscope as sc
async def request(n):
    async with asyncio.timeout(5):
        with sc.span("request", n=n):
            await asyncio.sleep(0.001)
async def main():
    async with sc.trace(output_dir=sys.argv[1], schedule=sc.schedule(wait=1, warmup=1, active=5),
                        exporters=[sc.ChromeTraceExporter(sys.argv[1] + "/t.json"), sc.tensorboard_trace_handler(sys.argv[1] + "/tb"), sc.exporters.MemoryExporter()],
                        backends=[sc.backends.HostBackend()] if hasattr(sc, "HostBackend") else []) as p:
        for n in range(30):
            async with asyncio.TaskGroup() as group:
                for k in range(20):
                    group.create_task(request(k))
            p.step()
        cancelled = asyncio.create_task(request(1)); await asyncio.sleep(0); cancelled.cancel()
    p.raise_errors(); str(p.report()); str(p.summary())
asyncio.run(main())
asyncio.run(main(), debug=True)
gc.collect()
"""
with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    print(done.stdout[-1000:], done.stderr[-3000:])
lines = [line for line in done.stderr.splitlines() if "Warning" in line or "Error" in line]
wrong = done.returncode or lines
print(f"WRONG: exit {done.returncode}: {lines[:3]}" if wrong else "ok: no warning")
sys.exit(bool(wrong))
