"""The ways by which a window is requested from outside: a file, a signal, a socket, the environment.

Read first: `control_file` with `watched_file`, then `local_socket` and `client`.
"""
