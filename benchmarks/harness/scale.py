"""How much a run measures."""

from __future__ import annotations

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a run. Rates, ratios and costs per call do not depend on them; how far they scatter does."""

    name: str
    rounds: int
    """Times that every tool has its turn in a row."""
    calls: int
    """Calls timed in a round, of operations that take some hundred nanoseconds; slow ones are called less often."""
    events: int
    """Events in the windows and files of the large measurements."""
    memory_events: int
    """Events of the window that memory is measured in: so many that they outweigh what is allocated once."""
    operators: int
    """torch operators in the windows of which the cost per operator is measured."""
    table_events: int
    """Events of the windows that tables are made of; torch takes 50 us for each."""
    steps: int
    """Training steps in each half of an alternation."""
    alternations: int
    """Pairs of training with and without tracing."""


FULL = Scale(
    name="full",
    rounds=11,
    calls=20_000,
    events=500_000,
    memory_events=500_000,
    operators=100_000,
    table_events=20_000,
    steps=100,
    alternations=21,
)
QUICK = Scale(
    name="quick",
    rounds=3,
    calls=10_000,
    events=50_000,
    memory_events=300_000,
    operators=20_000,
    table_events=2_000,
    steps=24,
    alternations=3,
)
SMOKE = Scale(
    name="smoke",
    rounds=1,
    calls=50,
    events=200,
    memory_events=200,
    operators=200,
    table_events=50,
    steps=1,
    alternations=1,
)

SCALES = {scale.name: scale for scale in (FULL, QUICK, SMOKE)}
