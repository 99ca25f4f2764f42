"""Makes the products of windows: `analysis.py` of one, in `background.py`'s thread; `offline.py` of earlier recordings."""
