"""Commands that run a program and trace it: `run` and `demo`.

Read `run.py` first, then `traced_program.py`; `ending.py` writes the answer at the end.
"""
