"""Checks settings and values that users give, and describes them in `help()` and docs.

Read first: `checked`, then `validation`.
"""
