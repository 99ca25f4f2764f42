"""Several parts together: real files, loops and processes."""
