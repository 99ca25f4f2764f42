"""The side of the program's threads."""
