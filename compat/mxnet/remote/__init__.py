"""`profile_process="server"`: the protocol that reaches other processes, and what stepscope has for it."""
