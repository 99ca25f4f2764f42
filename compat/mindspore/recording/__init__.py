"""From start to stop: `recording.py` has the methods that users call, `capture.py` the run and its windows."""
