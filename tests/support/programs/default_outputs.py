"""Records with every replacement that has a default directory for its output. Nothing may raise."""

import logging
import os

import stepscope as sc
import stepscope.mindspore
import stepscope.mxnet
from stepscope.compat.frameworks.loop import Loop
from stepscope.compat.frameworks.loop_settings import LoopSettings

logging.basicConfig(level=logging.WARNING, format="LOG %(message)s")


def record(profiler: sc.Profiler) -> None:
    with profiler:
        with sc.span("work"):
            pass
        profiler.step()


profiler = sc.trace()
record(profiler)
profiler.raise_errors()
assert (profiler.output.path / "journal").exists()
print("RUN", profiler.output.path)

record(sc.trace(options=sc.Options(journal=False)))

profiler = sc.trace(keep_last=2)
with profiler:
    with sc.span("work"):
        pass
    profiler.step()
    profiler.save("asked for")
assert profiler.saved()

# Files that are named here, where nothing can be written, cost their exporters only.
memory = sc.exporters.MemoryExporter()
named = [sc.exporters.JournalExporter("journal"), sc.ChromeTraceExporter("t.json"), sc.PerfettoExporter("t.pftrace")]
profiler = sc.trace(exporters=[memory, *named, sc.tensorboard_trace_handler("tb")], output_dir=os.environ["ELSEWHERE"])
record(profiler)
try:
    profiler.raise_errors()
except ExceptionGroup as group:
    assert len(group.exceptions) == 4, group.exceptions
    assert "cannot create" in str(group.exceptions)
pipeline = profiler.statistics().pipeline
assert pipeline is not None
assert [output.ledger.dropped.get("error", 0) > 0 for output in pipeline.exporters] == [False, True, True, True, True]

profiler = sc.trace(control="control")
record(profiler)
assert any("is not created" in note for note in profiler.diagnostics())

loop = Loop(LoopSettings(), "framework")
loop.open("fit")
loop.step()
loop.close()
loop.raise_errors()

stepscope.mxnet.set_config(profile_all=True, aggregate_stats=True)
stepscope.mxnet.set_state("run")
stepscope.mxnet.set_state("stop")
stepscope.mxnet.dump()

recording = stepscope.mindspore.Profiler()
recording.analyse()
print("DONE")
