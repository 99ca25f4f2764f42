"""Makes the products of windows: `analysis.py` of one, `background.py` runs it, `offline.py` finds what was recorded before."""
