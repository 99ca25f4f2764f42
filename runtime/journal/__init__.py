"""The journal: an append-only, framed, checksummed file of everything that a run recorded.

Read first: `format` and `records`, then `writer`, then `reader` and `replay`.
"""
