"""Metadata that the program adds to a profiler's windows."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope as sc
from stepscope.exporters.memory import MemoryExporter
from tests.support.messages import refused


def test_metadata_reaches_every_window_whenever_it_was_added(output_dir: Path) -> None:
    """Before the start, inside and between windows; each window has what was known when it closed."""
    memory = MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=1),
        exporters=[memory],
        output_dir=output_dir,
        metadata={"at": "trace"},
    ) as profiler:
        profiler.add_metadata("wait", {"nested": [1, 2.5, None]})
        profiler.step()
        profiler.add_metadata_json("inside", '{"lr": 0.1}')
        profiler.step()
        profiler.flush()
        profiler.add_metadata("between", 1)
        profiler.step()
        profiler.step()
    first, second = memory.windows
    assert first.metadata == {"at": "trace", "wait": {"nested": [1, 2.5, None]}, "inside": {"lr": 0.1}}
    assert second.metadata["between"] == 1
    with refused(TypeError, "metadata", "3"):
        profiler.add_metadata(3, "x")  # type: ignore[arg-type]


def test_metadata_that_is_not_json_is_stored_as_text(output_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong text does not raise into training, and is not lost."""
    memory = MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler:
        profiler.add_metadata_json("broken", "{not json")
        profiler.add_metadata_json("deep", "[" * 100_000)
    assert memory.windows[0].metadata["broken"] == "{not json"
    assert memory.windows[0].metadata["deep"] == "[" * 100_000
    assert "broken" in caplog.text
