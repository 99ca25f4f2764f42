"""How the ranks of one job record the same steps, over a directory that they share.

Read first: `agreement`, then `coordinator` and `participant`, then `records` (their files).
"""
