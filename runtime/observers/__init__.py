"""Signals (`Options.signals`): extra measurements such as stacks, waits, queues and processor time.

Read first: `observing`, then `stack_sampler` and `task_runs`.
"""
