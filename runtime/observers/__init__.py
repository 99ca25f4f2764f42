"""What is recorded besides the program's own events (`Options.signals`): stacks, waits, queues, processor time.

Read first: `observing`, then `stack_sampler`.
"""
