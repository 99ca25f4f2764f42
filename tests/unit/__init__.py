"""One module at a time, in this process."""
