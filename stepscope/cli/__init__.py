"""The `stepscope` command: `main.py` knows the commands, and each has a file in one of the folders."""
