"""Breaks the runtime in every way: `python -m tests.stress.torture --help`."""

from __future__ import annotations

from tests.stress.torture.command import main

if __name__ == "__main__":
    raise SystemExit(main())
