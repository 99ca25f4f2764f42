"""The entry points for requests: a file, a signal, a socket, the environment.

Read first: `control_file` with `watched_file`, then `local_socket` and `client`.
"""
