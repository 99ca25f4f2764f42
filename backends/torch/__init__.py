"""Operators of torch: `backend.py` chooses between recording them live (`stream.py`) and by torch's own engine (`kineto/`)."""
