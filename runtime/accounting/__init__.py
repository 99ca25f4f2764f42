"""The ledger of all events, the metadata, and the errors of the parts.

Read first: `ledger`, then `part_errors`, then `internal_errors` with `error_log`.
"""
