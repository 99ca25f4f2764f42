"""Takes frames out of a journal in place, so that a limit on the disk is kept while it grows.

Read first: `discard`, then `region` and `given_up`.
"""
