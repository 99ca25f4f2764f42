"""Files that torch's profiler wrote, as a source of events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.conformance import check_backend
from stepscope.backends.torch.kineto.worker import ChromeFilesBackend
from stepscope.runtime.events.record import Kind
from tests.support.basics import Deferred

torch: Any = Deferred("torch")


def write_trace(path: Path, names: Sequence[str]) -> Path:
    """A file of torch's own profiler, with regions of these names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for name in names:
            with torch.profiler.record_function(name):
                torch.add(torch.ones(2), 1)
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_file_becomes_part_of_the_window(tmp_path: Path, packed: str) -> None:
    """Though the program deletes it at once, and reading takes its time."""
    memory = sc.exporters.MemoryExporter()
    files = ChromeFilesBackend()
    cycle = sc.schedule(wait=1, warmup=1, active=3, repeat=1)
    with sc.trace(backends=[files], exporters=[memory], schedule=cycle, output_dir=tmp_path / "run") as profiler:
        for number in range(6):
            if number == 3:
                file = write_trace(tmp_path / f"torch.pt.trace.json{packed}", ["marked by torch"])
                files.add(file)
                file.unlink()
            profiler.step()
    assert profiler.audit() == ()
    spans = memory.events(kind=Kind.SPAN)
    found = dict(zip(memory.names(kind=Kind.SPAN), spans["step"].tolist(), strict=True))
    assert found["marked by torch"] == 3 and found["aten::add"] == 3
    assert "chrome_files" in str(profiler.report())


def test_a_file_that_is_none_is_a_note(tmp_path: Path) -> None:
    """Of the source; one that is missing is refused."""
    (tmp_path / "no.json").write_text("no trace")
    files = ChromeFilesBackend()
    with sc.trace(backends=[files], output_dir=tmp_path / "run") as profiler:
        files.add(tmp_path / "no.json")
        with pytest.raises(FileNotFoundError):
            files.add(tmp_path / "missing.json")
    assert "no.json was lost: " in str(profiler.report())
    assert profiler.audit() == ()


def test_trace_files_keep_the_contract_of_backends(tmp_path: Path) -> None:
    """The conformance suite, with a file of torch's profiler in each window."""
    made: list[ChromeFilesBackend] = []

    def make() -> ChromeFilesBackend:
        made.append(ChromeFilesBackend())
        return made[-1]

    def exercise() -> None:
        made[-1].add(write_trace(tmp_path / "torch.json", ["marked by torch"]))

    check_backend(make, exercise=exercise, deadline=60, tolerance=50_000_000)
