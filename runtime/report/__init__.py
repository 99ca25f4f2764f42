"""Reports of a profiler: its accounts and whether they balance, its tables, its errors, and the trust report.

Read first: `reporting`, then `profiler_statistics`, then `run_report`.
"""
