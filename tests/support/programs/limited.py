"""Records where the process may open only so many more files, or write none; prints what became of it."""

import json
import os
import resource
import sys

import stepscope as sc

kind, count = sys.argv[1:]
memory = sc.exporters.MemoryExporter()
trace = sc.trace  # the modules they need are imported while files can be opened
if kind == "files":
    used = len(os.listdir("/proc/self/fd")) - 1
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(count), hard))
else:
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(count), hard))
profiler = trace(output_dir="run", exporters=[memory])
with profiler:
    for _ in range(20):
        with sc.span("work"):
            pass
        profiler.step()
resource.setrlimit(resource.RLIMIT_NOFILE if kind == "files" else resource.RLIMIT_FSIZE, (limit, hard))
print(json.dumps({"state": profiler.statistics().state, "report": str(profiler.report())}))
