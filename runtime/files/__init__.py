"""Private files, paths that depend on the process, and JSON and MessagePack for any text."""
