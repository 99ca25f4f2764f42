"""The session directory with the rings of all processes of a session, and facts about processes and the system.

Read first: `directory`, then `note`, then `job` with `launch`.
"""
