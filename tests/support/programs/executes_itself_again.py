"""A program replaces itself by `exec`, as restarting trainers and reloading servers do, with a window open.

`os.execv` runs no `atexit` function, and the environment is inherited.

Right: the second program records its own run; what the first one recorded can be recovered.
"""

import os
import subprocess
import sys
import tempfile

import stepscope

if len(sys.argv) == 1:
    folder = tempfile.mkdtemp()
    environment = {**os.environ, "STEPSCOPE_LOG": ""}
    done = subprocess.run([sys.executable, __file__, folder, "first"], capture_output=True, text=True, timeout=60)
    print(done.stdout, done.stderr)
    tool = [sys.executable, "-m", "stepscope"]
    recovered = subprocess.run([*tool, "recover", f"{folder}/first"], capture_output=True, text=True, timeout=60)
    print(recovered.returncode, recovered.stdout, recovered.stderr)
    counts = {}
    for name in ("first", "second"):
        to = f"{folder}/{name}.json"
        made = subprocess.run([*tool, "convert", f"{folder}/{name}", to], capture_output=True, text=True, timeout=60)
        print(made.stdout, made.stderr)
        text = open(to).read() if os.path.exists(to) else ""
        counts[name] = text.count(f'"work of the {name}"')
    wrong = counts["second"] != 1000 or counts["first"] != 1000 or done.returncode
    print(f"{'WRONG' if wrong else 'ok'}: recorded spans {counts}, 1000 each are right; exit {done.returncode}")
    sys.exit(bool(wrong))

folder, name = sys.argv[1:]
profiler = stepscope.trace(output_dir=f"{folder}/{name}", start=False)
profiler.start()
for _ in range(1000):
    with stepscope.span(f"work of the {name}"):
        pass
if name == "first":
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, __file__, folder, "second"])
profiler.close()
