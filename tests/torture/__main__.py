"""Breaks the runtime in every way: `python -m tests.torture --help`."""

from __future__ import annotations

from tests.torture.command import main

if __name__ == "__main__":
    raise SystemExit(main())
