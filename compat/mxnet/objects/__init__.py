"""What programs make and mark: `domain.py` makes tasks, frames, counters and markers; `durations.py` has begin and end."""
