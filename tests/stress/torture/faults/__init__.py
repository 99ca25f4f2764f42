"""One module per family of faults; each has `FAULTS`."""
