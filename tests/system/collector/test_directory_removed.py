"""The directory of a collector is removed while a rank sends: the rank's report does not say that its events are stored."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.collecting import collecting, until
from tests.support.launch import run_to_end

RANK = """
import shutil, sys, time
import stepscope as sc
url, output, streams = sys.argv[1:4]
profiler = sc.trace(exporters=[sc.CollectorExporter(url)], output_dir=output, options=sc.Options(journal=False))
profiler.start()
for step in range(100):
    with sc.span("work"):
        time.sleep(0.01)
    profiler.step()
    if step == 50:
        shutil.rmtree(streams)
profiler.close()
print(profiler.report())
"""


def test_a_rank_without_a_journal_keeps_what_it_has(tmp_path: Path) -> None:
    """In its buffer, which can be delivered; the collector logs what is wrong, and goes on when it was started again."""
    streams = tmp_path / "c" / "streams"
    with collecting(tmp_path / "c") as collector:
        arguments = [sys.executable, "-c", RANK, collector.url, str(tmp_path / "run"), str(streams)]
        done = run_to_end(arguments, check=True)
        assert "kept in" in done.stdout and "cannot write" in done.stdout
        assert "deleted while it was written" in collector.stop()[1]
    (buffer,) = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
    with collecting(tmp_path / "c") as collector:
        deliver = [sys.executable, "-m", "stepscope", "deliver", str(buffer), "--url", collector.url]
        run_to_end(deliver, check=True)
        rank = until(lambda: next(iter(collector.get("/v1/ranks")), None))
        assert rank["state"] == "ended" and rank["events"] > 200
    assert list(streams.glob("*/journal"))
