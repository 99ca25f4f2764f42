"""A trace goes to a device or a pipe: `/dev/null` to try what it costs, a pipe to feed a program.

Right: a device stays a device, whatever the format; a pipe that nobody reads does not stop anything; the report says that the
exporter failed, why, and how many events it did not write.
"""

import os
import stat
import subprocess
import sys
import tempfile

PROGRAM = """
import sys, time
import stepscope as sc
kind, path, folder = sys.argv[1:]
exporter = {
    "array": lambda: sc.ChromeTraceExporter(path),
    "object": lambda: sc.ChromeTraceExporter(path, form="object"),
    "closed": lambda: sc.ChromeTraceExporter(path, closed=True),
    "gzip": lambda: sc.ChromeTraceExporter(path, gzip=True),
    "pftrace": lambda: sc.PerfettoExporter(path),
    "parquet": lambda: sc.exporters.ParquetExporter(path),
    "max": lambda: sc.ChromeTraceExporter(path, max_bytes=65536),
}[kind]()
with sc.trace(output_dir=folder, exporters=[exporter]) as p:
    for n in range(5000):
        with sc.span("x", n=n): pass
    p.flush(5)
print(p.report())
"""
faults = []
if os.geteuid():
    print("skipped: only root can make a device")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    for kind in ("array", "object", "closed", "gzip", "pftrace", "parquet", "max"):
        null = f"{folder}/null-{kind}"
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        pipe = f"{folder}/pipe-{kind}"
        os.mkfifo(pipe)
        for path in (null, pipe):
            command = [sys.executable, "-c", PROGRAM, kind, path, f"{folder}/run-{os.path.basename(path)}"]
            before = os.lstat(path).st_mode
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30)
                if done.returncode:
                    faults.append(f"{kind} to {os.path.basename(path)}: {done.stderr[-300:]}")
                output = [line for line in done.stdout.splitlines() if line.startswith("  output") and path in line]
                facts = ("0 of 5,002 events, 5,002 dropped (error)", "it is no regular file; name one that is")
                if not output or not all(text in output[0] for text in facts):
                    faults.append(
                        f"{kind} to {os.path.basename(path)}: the report does not say that it failed: {done.stdout}"
                    )
            except subprocess.TimeoutExpired:
                faults.append(f"{kind} to {os.path.basename(path)}: hangs")
            if stat.S_IFMT(os.lstat(path).st_mode) != stat.S_IFMT(before):
                faults.append(f"{kind}: {os.path.basename(path)} was replaced by a file")
print("WRONG: " + "; ".join(faults) if faults else "ok: devices and pipes stay what they are")
sys.exit(bool(faults))
