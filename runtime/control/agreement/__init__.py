"""Agreement: the ranks of one job record the same steps, by files in a shared directory.

Read first: `agreement`, then `job_directory` (the files).
"""
