"""How the ranks of one job record the same steps, over a directory that they share.

Read first: `agreement`, then `coordinator` (rank 0) and `participant` (the others), then `plans` (their files).
"""
