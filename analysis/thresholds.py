"""All thresholds by which rules judge, in one table."""

from __future__ import annotations

from stepscope.runtime.step_statistics import FIRST_STEPS as FIRST_STEPS

FINDING = 0.10
"""Share of the step from which on a cost is a finding."""
NO_PLACE = 0.50
"""Share from which on Python between operators is a finding even if no function is named."""
RECORDING_NS = 1_000
"""What recording adds to an operator, which is not the program's own time."""
COVERED = 0.80
"""Share of an excess that a cause must cover to be named."""
FEWEST_STEPS = 20
"""Fewer cannot be judged."""
SLOW_STEP = 2.0
"""Times the median from which on a step is slow."""
SLOW_STEPS_COST = 0.10
"""Share of all time that single slow steps cost together, to be a finding."""
DISTINCT = 0.5
"""By how much more of the samples of slow steps a function has than of the others, to be what makes them slow."""
RANK_WAIT = 0.10
"""Share of the step that others wait for a rank."""
UNEVEN_WORK = 0.20
"""The same if it is another rank from step to step, as chance makes a part of it."""
RANK_LAST = 0.60
"""Share of the steps in which it is the last."""
GROWTH_PER_100_STEPS = 0.03
"""Of the process's memory."""
GROWTH_BYTES = 64 << 20
"""Less than this in the whole run is no growth."""
TINY_OPERATOR_NS = 10_000
"""Mean time of an operator below which launching it is what costs."""
MANY_OPERATORS = 1_000
"""Outermost operators of a step."""
RUN_QUEUE = 0.10
"""Share of the step in which the thread waits for a processor."""
FEWEST_SAMPLES = 10
"""Fewer samples of the stack name no place."""
OTHER_THREAD = 0.30
"""Share of the samples of waiting in which another thread of the process runs Python."""
BLOCKED_NS = 50_000_000
"""A callback of an event loop that takes longer blocks it."""
DEVICE_IDLE = 0.30
"""Share of the time in which a device does nothing."""

READ_BACKS = 8
"""Values that are read back in a step."""
MOST_WORKERS = 32
"""More workers of a loader are not proposed."""
UNCOVERED_PLACE = 0.30
"""Share of the samples outside of torch that must be in one function to name it."""
LOOP_BLOCKED = 0.05
"""Share of the run in which callbacks that are too long block the loop."""
AT_THE_END = 0.01
"""Part of the run, at its end, in which tasks that end are taken for cancelled."""
NEVER_ENDING = 20
"""Tasks of one name that did not end."""
QUEUE_GROWTH = 100
"""Items by which a queue must grow."""
OVERSUBSCRIBED = 1.1
"""Times the processors there are that the job would use, from which on it is itself who contends for them."""
FEWEST_READINGS = 5
"""Of a queue's length, one each second."""
OVERSUBSCRIBED_BESIDE_OTHERS = 1.5
"""The same where other programs use processors as well: what the job waits for them is taken for its own demand."""
OTHERS_USE = 0.10
"""Part of the processors from which on that is so."""
PERIODIC = 0.70
"""Share of the excess of slow steps that those with a period must have."""
