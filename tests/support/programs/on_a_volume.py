"""Records on a volume, or by default, in a container whose root file system is read-only; prints what became of it."""

import json
import os

import stepscope as sc

volume = os.environ["VOLUME"]
exporters = [sc.ChromeTraceExporter(f"{volume}/trace.json"), sc.tensorboard_trace_handler(f"{volume}/tensorboard")]
profiler = sc.trace(output_dir=None if "BY_DEFAULT" in os.environ else f"{volume}/run", exporters=exporters)
with profiler:
    for _ in range(20):
        with sc.span("work"):
            pass
        profiler.step()
audit = profiler.audit()
assert not audit, audit
state, journal = profiler.statistics().state, profiler.output.path / "journal"
written = [path for path in (f"{volume}/trace.json", journal) if os.path.exists(path)]
print(json.dumps({"state": state, "files": len(written), "report": str(profiler.report())}))
