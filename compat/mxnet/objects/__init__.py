"""Objects and marks of programs: `domain.py` makes tasks, frames, counters and markers; `durations.py` has begin and end."""
