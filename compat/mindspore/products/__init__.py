"""What is made of a window: one product per file."""
