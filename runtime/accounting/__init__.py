"""The ledger of all events, and the errors of parts and of stepscope itself.

Read first: `ledger`, then `error_log`.
"""
