"""Runs the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

from benchmarks.harness.command import main

if __name__ == "__main__":
    raise SystemExit(main())
