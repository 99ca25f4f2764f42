"""The bounded inbox of a pipeline, and the messages of the training thread and the backends.

Read first: `messages`, then `inbox`.
"""
