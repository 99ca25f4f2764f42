"""Windows: assigns events to windows and steps, and computes the tables and statistics of each window.

Read first: `router`, then `open_window` with `step_marks`, then `step_facts` and `summary`.
"""
