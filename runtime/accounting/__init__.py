"""The ledger of all events, what went wrong in the parts, and the report of a run.

Read first: `ledger`, then `audit` (whether it balances), `run_report`, and `internal_errors` with `error_log`.
"""
