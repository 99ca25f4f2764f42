"""Which steps are recorded: `schedule(wait, warmup, active, repeat, skip_first)`, as pure functions.

Read first: `schedule`, then `plan` and `diagnostics`.
"""
