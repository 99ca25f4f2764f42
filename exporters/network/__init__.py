"""Shared by exporters that send: when they try again, how they connect and with which secrets, and the outcome of events.

Read first: `outcomes` and `backoff`, then `secrets` and `http_failures`.
"""
