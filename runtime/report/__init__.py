"""What a profiler says of itself: its tables, its accounts, what was raised, and the report of a run."""
