"""Which steps are recorded, `schedule(wait, warmup, active, repeat, skip_first)` as pure functions, and in which detail.

Read first: `schedule`, then `plan`, then `detail`.
"""
