"""The ledger of all events, the errors of parts, and the report of a run.

Read first: `ledger`, then `audit` (checks that it balances), `run_report` and `error_log`.
"""
