"""Start and end of a run: its directory, profilers that start and close, processes that join, the interpreter's exit.

Read first: `lifecycle`, then `output_directory`, `open_run`, then `interpreter_exit` and `join`.
"""
