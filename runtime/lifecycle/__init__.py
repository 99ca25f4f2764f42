"""Start and end of profilers: closing, the interpreter's exit, and signals.

Read first: `starting`, `closing`, then `signals` and `interpreter_exit`.
"""
