"""Runs them: `python -m benchmarks.endurance --help`."""

from __future__ import annotations

from benchmarks.endurance.command import main

if __name__ == "__main__":
    raise SystemExit(main())
