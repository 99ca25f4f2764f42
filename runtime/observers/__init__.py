"""What is recorded besides the program's own events (`Options.signals`): stacks, waits, tasks, queues, processor time.

Read first: `observing`, then `stack_sampler` and `task_runs`.
"""
