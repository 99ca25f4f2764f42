"""Streams that come through NATS JetStream: which of them this collector takes, and what it does with their messages."""
