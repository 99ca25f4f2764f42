"""Tables, `explain` and reports."""
