"""Control: requests for windows while the program runs, by a call, a file, a signal or another process.

Read first: `controller`, then `control_thread` and `request_router`, then the folders; `requests` beside has what may be asked.
"""
