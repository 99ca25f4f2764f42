"""The `stepscope` command, one file for each of its commands."""
