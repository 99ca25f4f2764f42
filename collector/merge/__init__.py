"""The streams of all ranks of a job as one trace, their times aligned."""
