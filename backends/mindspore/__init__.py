"""Operators of MindSpore, from the files that its own recorder writes. Begin with `backend.py`."""
