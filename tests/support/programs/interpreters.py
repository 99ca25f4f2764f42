"""A server runs requests in interpreters of their own (mod_wsgi, `concurrent.interpreters`), and one imports stepscope.

Right: it works there, or the import fails with one sentence; the process does not die, and the first interpreter records.
"""

import subprocess
import sys
import tempfile

PROGRAM = """
import sys
import stepscope as sc
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
memory = sc.exporters.MemoryExporter()
with sc.trace(output_dir=sys.argv[1], exporters=[memory]) as p:
    with sc.span("before"): pass
    other = interpreters.create()
    code = '''
try:
    import stepscope as sc
    with sc.span("there"): pass
    print("imported there")
except Exception as error:
    print("refused there:", type(error).__name__, error)
'''
    try:
        print("answer", interpreters.run_string(other, code))
    finally:
        interpreters.destroy(other)
    with sc.span("after"): pass
print("recorded", sorted(set(memory.names()) & {"before", "after"}))
"""
faults = []
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, folder], capture_output=True, text=True, timeout=60
    )
    print(done.stdout, done.stderr[-1500:])
    if done.returncode or "recorded ['after', 'before']" not in done.stdout:
        faults.append(f"exit {done.returncode}")
print("WRONG: " + "; ".join(faults) if faults else "ok: the process lives, and records")
sys.exit(bool(faults))
