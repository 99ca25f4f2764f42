"""All thresholds by which rules judge, in one table."""

from __future__ import annotations

from stepscope.runtime.windows.step_statistics import FIRST_STEPS as FIRST_STEPS

FINDING = 0.10
"""Share of the step from which on a cost is a finding."""
FEWEST_STEPS = 20
"""Fewer steps cannot be judged."""
ANOMALY = 0.05
"""Share of the samples in steps in which torch formats stacks for its anomaly detection."""
FEWEST_SAMPLES = 10
"""Fewer samples of the stack name no place."""
COMMON = 0.90
"""Share of the samples in steps that the function of the training loop has, and no single line of it."""
COVERED = 0.80
"""Share of an excess that a cause must cover to be named."""
MAJORITY = 0.5
"""Share of some samples, times or tasks from which on they are taken for the rule, and the others for exceptions."""

USUAL_STEPS = 0.95
"""Share of the steps, the shortest first, over which sums are made; the longest ones are judged by themselves."""
MOST_WORKERS = 32
"""More workers of a loader are not proposed."""
HANDOVER_NS = 1_000_000
"""Time that a worker adds to a step, as it hands its batch over to the training process. Measured with torch 2.13 on two cores of an Intel
Xeon: a DataLoader with one worker, whose 32 items were one tensor that was there already, gave a batch every 0.9 to 1.3 ms,
and every 0.02 to 0.04 ms without workers; a batch that was ready took `next()` 1.0 to 1.3 ms at the median."""
HANDOVER = 0.30
"""Share of the step for which the training takes batches over, to be a finding: less is the price of workers."""
MOST_HANDOVER_NS = 3_000_000
"""Longer waits for a batch are not put down to its handing over."""
SLOW_ITEM = 5.0
"""Times the usual time of an item from which on an item is slow."""
SLOW_ITEM_NS = 1_000_000
"""The least excess of a slow item."""
BUSIER = 2.0
"""An item is slow by itself if its batch took so many times the usual processor time; else it may only wait for a processor."""
FEWEST_SLOW_ITEMS = 3
"""Fewer are single events, such as the first read of a file."""

RANK_WAIT = 0.10
"""Share of the step for which other ranks wait for a rank, to be a finding."""
RANK_DISTINCT = 0.2
"""A function makes a rank slow if its share of the rank's samples is larger by this than its share on the others."""
RANK_LAST = 0.60
"""Share of the steps in which a rank must be the last one, to be the slow rank."""
RANK_LONGER = 1.5
"""Times the steps of the other ranks that those of a rank take, to be a finding where no collective shows who waits."""
UNEVEN_WORK = 0.20
"""Share of the step for which ranks wait, to be a finding if it is another rank from step to step: chance makes a part of it."""
MANY_COLLECTIVES = 20
"""Collectives of one name in a step from which on they are many."""

SLOW_STEP = 2.0
"""Times the median from which on a step is slow."""
SLOW_STEP_NS = 1_000_000
"""The least excess of a slow step over the median: a smaller one may be work of stepscope itself."""
SLOW_STEPS_COST = 0.10
"""Share of all time that single slow steps cost together, to be a finding."""
MOST_SLOW_STEPS = 0.3
"""Share of the steps; if more are slow, they are no single ones."""
DISTINCT = 0.5
"""A function makes steps slow if its share of their samples is larger by this than its share of the samples of other steps."""
PERIODIC = 0.70
"""Share of the extra time of slow steps that those with a period must have."""
PERIODS_SLOW = 0.8
"""Share of the steps at a period's distance that must be slow."""
FEWEST_PERIODS = 3
"""Slow steps at a period's distance."""
FEWEST_LATE_STEPS = 30
"""Steps since the first of them, if it came after normal steps at this distance."""

GROWTH_PER_100_STEPS = 0.03
"""Share of the process's memory by which it grows in 100 steps, to be a finding."""
GROWTH_BYTES = 64 << 20
"""Less than this in the whole run is no growth."""
RECORDED_BYTES = 256
"""Bytes of memory for each event until a window ends: torch's engine was seen to take 155."""
LATE_GROWTH = 0.15
"""Share of the growth that the last third of the run must have: a cache that fills grows at first."""

COLLECTIONS_REQUESTED = 5
"""With fewer collections of the middle generation for each full one, the program asks for full ones: Python itself makes ten."""

TINY_OPERATOR_NS = 10_000
"""Mean time of an operator below which launching it is what costs."""
MANY_OPERATORS = 1_000
"""Outermost operators in a step from which on they are many."""
READ_BACKS = 8
"""Values that are read back in a step, to be a finding."""

RUN_QUEUE = 0.10
"""Share of the step in which the thread waits for a processor, to be a finding."""
CONTENDED_LONGER = 2.0
"""Times as long that a rank which waits for processors may take for the same work: what has its processor meanwhile has the caches, too."""
OVERSUBSCRIBED = 1.1
"""The job itself contends for processors if it would use this many times those there are."""
OVERSUBSCRIBED_WITH_OTHERS = 1.5
"""The same where other programs use processors as well: the time that the job waits for them counts as its own demand."""
OTHERS_USE = 0.10
"""Share of the processors from which on an answer names other programs that use them."""
BUSY_THREAD = 0.05
"""Share of a processor that a thread must use to be named."""
OTHER_THREAD = 0.30
"""Share of the samples of waiting in which another thread of the process runs Python."""

NO_PLACE = 0.50
"""Share from which on Python between operators is a finding even if no function is named."""
RECORDING_NS = 1_000
"""Time that recording adds to an operator, which is not the program's own."""
UNCOVERED_PLACE = 0.30
"""Share of the samples outside of torch that must be in one function to name it."""
WAITING = 0.3
"""Share of some time; if the thread runs for less of it, it waits."""
WRITING = 0.6
"""The same of time in which it may be writing, if its steps write `WRITTEN_BYTES`."""
WRITTEN_BYTES = 64 << 10
"""If a step writes this much or more, its waiting is taken for writing."""

DEVICE_IDLE = 0.30
"""Share of the time in which a device does nothing."""
DEVICE_BUSY = 0.85
"""Share of the time in which a device computes, from which on the steps take as long as its kernels."""
OPTIMIZER_LAUNCHES = 0.20
"""Share of the step that an optimizer takes, to be named where a device idles."""

BLOCKED_NS = 50_000_000
"""A callback of an event loop that takes longer blocks it."""
LOOP_BLOCKED = 0.05
"""Share of the run in which callbacks that are too long block the loop."""
BRIEFLY_BLOCKED_NS = 10_000_000
"""A callback that takes longer blocks the loop as well, if many do."""
LOOP_OFTEN_BLOCKED = 0.20
"""Share of the run in which they block the loop, to be a finding."""
FEWEST_OPEN_TASKS = 20
"""Tasks of one name that did not end, to be a finding."""
AT_THE_END = 0.01
"""Share of the run, at its end: tasks that end there are taken for cancelled."""
TASKS_SLOWER = 3.0
"""Times as long as in the first third of a run that tasks must take in the last, to pile up."""
QUEUE_GROWTH = 100
"""Items by which a queue must grow."""
QUEUE_FULL = 0.8
"""Share of its greatest length that a growing queue must have at the end."""
FEWEST_READINGS = 5
"""Readings of a queue's length, one each second; fewer cannot be judged."""
