"""The main thread ends while worker threads go on: servers and pipelines leave their work to threads that are waited for.

Right: what they record until they end is in the trace.
"""

import subprocess
import sys
import tempfile

PROGRAM = """
import atexit, sys, threading, time
import stepscope as sc
profiler = sc.trace(output_dir=sys.argv[1], exporters=[sc.ChromeTraceExporter(sys.argv[1] + "/t.json")], start=False)
profiler.start()
def work():
    for n in range(200):
        with sc.span("work"): time.sleep(0.005)
        profiler.step()
def last():
    with sc.span("at exit"): pass
atexit.register(last)
threading.Thread(target=work).start()
"""
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=60)
    text = open(f"{folder}/t.json").read()
    count = text.count('"name": "work"') or text.count('"work"')
    print(f"  exit {done.returncode}, {count} spans, at exit: {'at exit' in text}; {done.stderr[-500:]}")
wrong = done.returncode or count < 200
print("WRONG: spans are missing" if wrong else "ok: all are there")
sys.exit(bool(wrong))
