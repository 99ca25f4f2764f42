"""Streams that come through NATS: which partitions of them this collector takes, and how it writes their messages."""
