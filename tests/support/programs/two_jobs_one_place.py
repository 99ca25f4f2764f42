"""Two jobs are started by mistake with the same output directory and the same trace file, at the same time.

Right: both run; no file has spans of both, and the one that does not write the trace says in its report that another process
writes to it. A window's file that one has finished may be replaced by the other's.
"""

import json
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import sys, time
import stepscope as sc
with sc.trace(output_dir="run", exporters=[sc.ChromeTraceExporter("trace.json", form=sys.argv[2]), sc.ChromeTraceExporter("w-{window}.json", form=sys.argv[2])],
              schedule=sc.schedule(wait=0, warmup=0, active=50)) as p:
    for n in range(400):
        with sc.span("job " + sys.argv[1], n=n): time.sleep(0.002)
        p.step()
print(p.report())
"""
faults = []
for form in ("array", "object"):
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, name, form],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in "AB"
        ]
        reports = {}
        for name, job in zip("AB", jobs, strict=True):
            reports[name], text = job.communicate(timeout=60)
            if job.returncode:
                faults.append(f"{form}: exit {job.returncode}: {text[-300:]}")
        found = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                text = open(f"{folder}/{name}").read()
                try:
                    json.loads(
                        text if form == "object" or text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]"
                    )
                except ValueError as error:
                    faults.append(f"{form}: {name} is no JSON: {error}")
                found[name] = (text.count('"job A"'), text.count('"job B"'))
        print(" ", form, found, os.listdir(f"{folder}/run"))
        empty = [name for name, (a, b) in found.items() if not a and not b]
        if empty:
            faults.append(f"{form}: {empty} have events of neither")
        mixed = [name for name, (a, b) in found.items() if a and b]
        if mixed:
            faults.append(f"{form}: {mixed} have events of both")
        for name, spans in zip("AB", found["trace.json"], strict=True):
            output = next(
                line for line in reports[name].splitlines() if line.startswith("  output    chrome:trace.json")
            )
            refused = "another process writes to it; give each process a name of its own" in output
            if not (spans == 400 and "1 error" not in output or spans == 0 and refused):
                faults.append(f"{form}: trace.json has {spans} of 400 spans of job {name}, whose report says: {output}")
        parts = {name: spans for name, spans in found.items() if name != "trace.json" and set(spans) != {0, 50}}
        if parts:
            faults.append(f"{form}: windows have 50 spans of one job, not {parts}")
print("WRONG: " + "; ".join(faults) if faults else "ok: each has its own")
sys.exit(bool(faults))
