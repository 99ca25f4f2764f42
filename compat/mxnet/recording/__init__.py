"""The recording of a process: `recording.py` starts and stops it, `settings.py` has the arguments of `set_config`."""
