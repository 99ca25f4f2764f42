"""Takes frames out of a stored stream in place, so that a limit on the disk is kept while it grows.

Read first: `discard`, then `region` (what is moved together) and `walk` (the frames of a file by their headers).
"""
