"""Private files, how they are read and written, paths that depend on the process, and JSON and MessagePack for any text.

Read first: `private_files`, then `file_reading`, then `paths`, `encoding` and `descriptors`.
"""
