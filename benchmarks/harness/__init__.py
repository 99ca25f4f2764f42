"""How rows are measured, compared and shown."""
