"""Times of steps as scalars, read by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.exporters.files.scalars import DURATION, LONGEST, PHASE_GROUP, StepScalarExporter
from stepscope.runtime.errors import ExporterError
from tests.support.basics import require

STEPS = 5


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of each chart, as TensorBoard has them: step and value."""
    reader: Any = require("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(directory)).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def train(output_dir: Path, exporter: StepScalarExporter, rank: int | None = None) -> None:
    """Steps that wait for data."""
    with sc.trace(output_dir=output_dir, exporters=[exporter], rank=rank) as profiler:
        for _ in range(STEPS):
            with sc.span("batch", category="data"):
                sum(range(10_000))
            profiler.step()


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    """A point has the means over the steps that have ended, and the longest of them."""
    train(tmp_path / "run", StepScalarExporter(tmp_path / "tb"))
    facts = sc.load(tmp_path / "run").ranks[0].steps
    durations = (facts["end"] - facts["begin"])[:STEPS] / 1e6
    found = scalars(tmp_path / "tb")
    assert found.keys() == {DURATION, LONGEST, PHASE_GROUP + "data"}
    (last, mean), (_, longest), (_, data) = (found[tag][-1] for tag in (DURATION, LONGEST, PHASE_GROUP + "data"))
    assert last == STEPS - 1 and len(found[DURATION]) == 1
    assert mean == pytest.approx(durations.mean(), rel=1e-6) and longest == pytest.approx(durations.max(), rel=1e-6)
    assert 0 < data <= mean


def test_each_rank_has_a_directory(tmp_path: Path) -> None:
    """So that TensorBoard shows them as runs."""
    train(tmp_path / "run", StepScalarExporter(tmp_path / "tb"), rank=3)
    assert scalars(tmp_path / "tb" / "rank3")


def test_a_cut_file_has_the_points_before(tmp_path: Path) -> None:
    """As a killed process leaves it."""
    exporter = StepScalarExporter(tmp_path / "tb")
    train(tmp_path / "run", exporter)
    (file,) = (tmp_path / "tb").iterdir()
    content = file.read_bytes()
    file.write_bytes(content + content[-200:][:50])
    assert len(scalars(tmp_path / "tb")[DURATION]) == 1


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The run goes on; the error names the place."""
    (tmp_path / "tb").write_text("a file")
    with sc.trace(output_dir=tmp_path / "run", exporters=[StepScalarExporter(tmp_path / "tb")]) as profiler:
        profiler.step()
    with pytest.raises(ExceptionGroup) as raised:
        profiler.raise_errors()
    assert raised.group_contains(ExporterError, match="create files in the directory")


def test_a_directory_that_is_no_path() -> None:
    """It is refused where it is given."""
    with pytest.raises(TypeError, match="dir_name"):
        StepScalarExporter(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
