"""A program that ends while pyarrow writes a Parquet file to a slow disk: closing has passed its deadline. Argument: a directory."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import stepscope as sc
from stepscope.exporters import parquet

WRITE_S = 0.02


class SlowFile(io.BufferedWriter):
    """On a slow disk."""

    def write(self, data: Any, /) -> int:
        time.sleep(WRITE_S)
        return super().write(data)


def main(directory: Path) -> None:
    """Records more than can be written by the deadline."""
    setattr(parquet, "open", lambda path, mode, _, opener: SlowFile(io.FileIO(path, mode, opener=opener)))  # noqa: B010
    exporter = sc.exporters.ParquetExporter(directory / "trace.parquet")
    with sc.trace(exporters=[exporter], output_dir=directory / "run", options=sc.Options(close_timeout=0.5)):
        for number in range(150_000):
            with sc.span("work", number=number, text=str(number * 7919)):
                pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
