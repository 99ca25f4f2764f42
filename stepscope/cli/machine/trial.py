"""Records a span, and operators of torch, and prints each result as a line of JSON for `stepscope doctor`."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import msgspec

SPAN, TORCH = "stepscope trial of a span: ", "stepscope trial of torch: "
"""Begins of the lines with results. Other packages may print lines of their own."""


class Trial(msgspec.Struct, frozen=True):
    """The result of recording a span, or an operator of torch; of a span it has the problem only."""

    version: str = ""
    mode: str = ""
    """`stream` or `kineto`."""
    device: str = ""
    """Name of the first device."""
    kernels: bool | None = None
    """Whether a kernel was recorded on the first device; `None` without one."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why it failed; empty if it worked."""


def record_span(place: Path) -> Trial:
    """Records a span, and reads it back from the journal."""
    import stepscope as sc

    try:
        with sc.trace(output_dir=place) as profiler, sc.span("trial"):
            pass
        profiler.raise_errors()
        names = [row.name for row in profiler.aggregates().rows]
        if "trial" not in names or not sc.load(place).ranks[0].windows:
            return Trial(problem="; ".join(profiler.diagnostics()) or "the span is not in the journal")
    except Exception as error:
        return Trial(problem=f"{type(error).__name__}: {error}")
    return Trial()


def record_torch(place: Path) -> Trial:
    """Records an operator of torch; torch must not be imported yet."""
    import stepscope as sc

    try:
        torch: Any = importlib.import_module("torch")
        device: str = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        backend = sc.TorchBackend()
        with sc.trace(backends=[backend], output_dir=place) as profiler:
            torch.add(torch.ones(2, device="cuda" if device else "cpu"), 1)
            if device:
                torch.cuda.synchronize()
        profiler.raise_errors()
        report = backend.report()
        found = profiler.aggregates()
        kernels = any(row.category == "kernel" for row in (*found.rows, *found.elsewhere)) if device else None
        if not any(row.name.startswith("aten::") for row in found.rows):
            why = "; ".join((*report.notes, *profiler.diagnostics()))
            return Trial(problem=why or "no operator was recorded")
    except Exception as error:
        return Trial(problem=f"{type(error).__name__}: {error}")
    return Trial(str(torch.__version__), report.mode, device, kernels, report.notes)


def main() -> None:
    """Prints both."""
    with tempfile.TemporaryDirectory(prefix="stepscope-doctor-") as directory:
        print(SPAN + msgspec.json.encode(record_span(Path(directory, "span"))).decode(), flush=True)
        if importlib.util.find_spec("torch") is not None:
            print(TORCH + msgspec.json.encode(record_torch(Path(directory, "torch"))).decode(), flush=True)


if __name__ == "__main__":
    main()
