"""Jobs of several ranks that stream to a collector, for tests."""
