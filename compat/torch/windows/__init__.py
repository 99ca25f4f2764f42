"""One window of a profile, and what happens when it begins and ends; read `finished_window.py` first."""
