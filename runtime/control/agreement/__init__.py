"""Agreement: the ranks of one job record the same steps, by files in a shared directory.

Read first: `agreement`, then `coordinator` (rank 0) and `participant` (the others), then `plans` (their files).
"""
