"""Long runs: memory, descriptors and threads of a process that traces 100 million spans, or starts 10,000 times."""
