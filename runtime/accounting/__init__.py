"""The ledger of all events, the metadata, and what went wrong in the parts.

Read first: `ledger`, then `part_errors`, then `internal_errors` with `error_log`.
"""
