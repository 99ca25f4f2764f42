"""The journal: an append-only, framed, checksummed file of everything that a run recorded."""
