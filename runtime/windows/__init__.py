"""Windows: which window and step an event belongs to, and what is summed up of each.

Read first: `router`, then `open_window` with `borders` and `step_marks`, then `step_facts` and `summary`.
"""
