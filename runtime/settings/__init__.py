"""Checks settings and arguments of users, and describes settings in `help()` and docs.

Read first: `checked`, then `validation`.
"""
