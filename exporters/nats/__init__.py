"""Streaming through NATS JetStream, for clusters that outgrow one collector."""
