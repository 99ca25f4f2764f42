"""A container runs Python with `-OO`, which removes docstrings and assertions.

Right: everything works as without: a trace has the same spans, the command's help says what it says.
"""

import json
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import stepscope as sc
with sc.trace(schedule=sc.schedule(wait=1, warmup=1, active=2), exporters=[sc.ChromeTraceExporter("t.json")],
              options=sc.Options(drain_interval=0.2)) as p:
    for _ in range(9):
        with sc.span("x"):
            pass
        p.step()
print(p.summary()); print(p.report()); p.raise_errors()
"""


def spans_of(path):
    """Names of the spans of a trace, which is deleted; none if it is not there."""
    if not os.path.exists(path):
        return []
    text = open(path).read()
    os.unlink(path)
    events = json.loads(text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]")
    return sorted(event["name"] for event in events if event.get("ph") == "X")


faults = []
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/train.py", "w").write("import stepscope as sc\nwith sc.span('x'): pass\n")
    for what in (
        ["-c", PROGRAM],
        ["-m", "stepscope", "--help"],
        ["-m", "stepscope", "run", "train.py"],
        ["-m", "stepscope", "run", "--help"],
        ["-m", "stepscope", "collect", "--help"],
        ["-c", "import stepscope.torch"],
        ["-c", "import stepscope.mindspore"],
        ["-c", "import stepscope.mxnet as m; m.set_state('run'); m.set_state('stop')"],
    ):
        trace = f"{folder}/t.json"
        plain = subprocess.run([sys.executable, *what], cwd=folder, capture_output=True, text=True, timeout=60)
        without = spans_of(trace)
        done = subprocess.run([sys.executable, "-OO", *what], cwd=folder, capture_output=True, text=True, timeout=60)
        if done.returncode != plain.returncode:
            faults.append(f"{what[:3]}: exit {done.returncode}, {done.stderr.strip().splitlines()[-1:]}")
        optimised = spans_of(trace)
        if optimised != without or (PROGRAM in what and optimised.count("x") != 4):
            faults.append(f"{what[:3]}: the spans are {optimised}, without -OO {without}")
        if "--help" in what and done.stdout != plain.stdout:
            faults.append(f"{what}: another help")
print("WRONG: " + "; ".join(faults) if faults else "ok: all work with -OO")
sys.exit(bool(faults))
