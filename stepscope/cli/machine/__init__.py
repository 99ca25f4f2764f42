"""The command that says what can be recorded here: `doctor`."""
