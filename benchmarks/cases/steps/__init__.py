"""`step()`, and what the end of a window costs the loop that steps."""
