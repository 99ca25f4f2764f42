"""What the training thread and the backends tell a pipeline, and the bounded inbox by which they do.

Read first: `messages`, then `inbox`.
"""
