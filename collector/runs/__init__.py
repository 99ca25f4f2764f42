"""Reads from journals which job a run belongs to, its windows, and the parts of them that exist."""
