"""How a run begins and ends: its directory, and profilers that start and close, also at the interpreter's exit.

Read first: `output_directory`, `starting`, `closing`, then `interpreter_exit`.
"""
