"""Where a run writes: not through what somebody put in the place, and not where the program goes later."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.exporters.journal import WindowJournalsExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.tensorboard import TensorBoardExporter
from stepscope.runtime.errors import OutputError
from tests.support.basics import require
from tests.support.flight_recording import Profile
from tests.support.messages import check_messages, refused


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory that links lead to."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    return place


def test_a_rank_is_no_link(tmp_path: Path, elsewhere: Path) -> None:
    """Where `rank0` leads elsewhere, the run does not begin; where the user's own directory does, it is followed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0").symlink_to(elsewhere)
    with refused(OutputError, "rank0", "output_dir"):
        sc.trace(output_dir=tmp_path / "run", rank=0).start()
    assert not list(elsewhere.iterdir())
    (tmp_path / "mine").symlink_to(elsewhere)
    with sc.trace(output_dir=tmp_path / "mine", rank=0), sc.span("x"):
        pass
    assert (elsewhere / "rank0" / "journal").exists()


def test_saved_windows_follow_no_link(tmp_path: Path, elsewhere: Path) -> None:
    """Nothing lands where `windows` leads: that is an error of the output, with the name."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "windows").symlink_to(elsewhere)
    run = Profile(tmp_path / "run")
    with run.profiler as profiler:
        run.steps(5)
        profiler.save("x")
        run.steps(5)
    assert not list(elsewhere.iterdir())
    with pytest.raises(ExceptionGroup) as raised:
        profiler.raise_errors()
    assert "windows is a symbolic link" in repr(raised.value.exceptions)


async def test_a_link_that_comes_later(tmp_path: Path, elsewhere: Path) -> None:
    """It is looked for with each window."""
    exporter = WindowJournalsExporter()
    await exporter.open(run_in(tmp_path))
    (tmp_path / "windows").symlink_to(elsewhere)
    with refused(OutputError, "windows"):
        await exporter.export(batch_of(spans(["x"])))
    await exporter.aclose()
    assert not os.listdir(elsewhere)


def test_a_note_that_cannot_be_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything is written all the same, and closing says so: the note stays, the session goes, and a line is in the log."""
    memory = sc.exporters.MemoryExporter()
    profiler = sc.trace(
        output_dir=tmp_path / "above" / "run",
        exporters=[memory],
        options=sc.Options(journal=False, session_dir=str(tmp_path)),
    )
    profiler.start()
    with sc.span("x"):
        pass
    assert profiler.flush(50)
    (tmp_path / "above").rename(tmp_path / "moved")
    (tmp_path / "above").write_text("")
    with caplog.at_level(logging.WARNING, "stepscope"):
        profiler.close()
    check_messages(caplog.records, "/session")
    assert "not delivered" not in str(profiler.report())
    assert (tmp_path / "moved" / "run" / "session").exists()
    assert sum(len(batch) for batch in memory.batches)
    assert not list(tmp_path.glob("stepscope-*/run-*"))


@pytest.mark.parametrize("kind", ["chrome", "each window", "perfetto", "tensorboard", "parquet", "journal"])
async def test_relative_names(kind: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the directory in which the exporter was made, wherever the program has gone since."""
    if kind == "parquet":
        require("pyarrow")
    makes: dict[str, Callable[[], sc.exporters.Exporter]] = {
        "chrome": lambda: sc.ChromeTraceExporter("made/x"),
        "each window": lambda: sc.ChromeTraceExporter("made/{window}"),
        "perfetto": lambda: sc.PerfettoExporter("made/x"),
        "tensorboard": lambda: TensorBoardExporter("made"),
        "parquet": lambda: sc.exporters.ParquetExporter("made/x"),
        "journal": lambda: sc.exporters.JournalExporter("made/x"),
    }
    monkeypatch.chdir(tmp_path)
    exporter, batch = makes[kind](), batch_of(spans(["x"]))
    monkeypatch.chdir(elsewhere)
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch)
    await exporter.close_window(window_of(0, batch))
    await exporter.aclose()
    assert os.listdir(tmp_path / "made")
    assert not os.listdir(elsewhere)
