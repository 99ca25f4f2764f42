"""How profilers start and end: together, at the interpreter's exit, and by signals.

Read first: `starting`, `closing`, then `signals` and `interpreter_exit`.
"""
