"""Memory over time as counters, and the table of allocations."""
