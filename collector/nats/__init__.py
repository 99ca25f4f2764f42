"""Streams that come through NATS JetStream: which of them this collector ingests, and how it writes their messages."""
