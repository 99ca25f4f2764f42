"""A service starts its profiler and then becomes a daemon: it forks twice, closes all descriptors and opens its own files.

The processes before it end, and the numbers of the closed descriptors go to the daemon's files.

Right: the daemon either records, or a warning says that the profiler stayed in the parent; it can start one of its own; what
the parent recorded is whole.
"""

import os
import subprocess
import sys
import tempfile
import time

PROGRAM = """
import os, sys, time
import stepscope as sc
folder = sys.argv[1]
profiler = sc.trace(output_dir=folder + "/parent", exporters=[sc.ChromeTraceExporter(folder + "/parent.json")], start=False)
profiler.start()
with sc.span("before"): pass
if os.fork():
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(3, 1024)
own_files = [open(f"{folder}/own-{n}", "w+") for n in range(40)]
with sc.span("in the daemon"): pass
profiler.step()
profiler.close()
own = sc.trace(output_dir=folder + "/daemon", exporters=[sc.ChromeTraceExporter(folder + "/daemon.json")])
with own:
    with sc.span("own"): pass
open(folder + "/done", "w").write(str(sum(os.fstat(file.fileno()).st_size for file in own_files)))
"""

with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=60)
    for _ in range(100):
        if os.path.exists(f"{folder}/done"):
            break
        time.sleep(0.1)
    time.sleep(0.5)

    def read(name):
        return open(f"{folder}/{name}").read() if os.path.exists(f"{folder}/{name}") else ""

    facts = {
        "parent recorded": '"before"' in read("parent.json"),
        "daemon lives": os.path.exists(f"{folder}/done"),
        "daemon recorded": '"own"' in read("daemon.json"),
        "said": "fork" in done.stderr,
        "nothing in the daemon's own files": read("done") == "0",
    }
    print(" ", facts, done.stderr[-600:])
wrong = not all(facts.values())
print("WRONG: " + str(facts) if wrong else "ok: the daemon has a profiler of its own")
sys.exit(wrong)
