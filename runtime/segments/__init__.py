"""Segments: files that hold what a run recorded. Read `frames.py` first, then `docs/segment-format.md` for the bytes."""
