"""What the metadata of a window say of the request that it was armed by: always what was recorded, not what was wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.runtime.windows.window import ARMED, Step, Window


def add_recorded(facts: dict[str, Any], rank: int | None, steps: Sequence[Step]) -> None:
    """Completes the facts of an armed window that is finished; those of another one stay as they are.

    Args:
        facts: of the window, to be changed.
        rank: of the process.
        steps: that it holds.
    """
    armed: dict[str, Any] | None = facts.get(ARMED)
    if armed is None or not steps:
        return
    first, last = steps[0].number, steps[-1].number
    armed.update(first_step=first, last_step=last, name=recorded_name(rank, first, last, str(armed.get("run_id", ""))))


def recorded_name(rank: int | None, first: int, last: int, run_id: str = "") -> str:
    """A name for a window's files: `rank0_start10_stop12`, and `_` with the run id if there is one."""
    name = f"rank{rank or 0}_start{first}_stop{last}"
    return f"{name}_{run_id}" if run_id else name


def armed_facts(window: Window) -> Mapping[str, Any] | None:
    """What is known of the request that a window was armed by; `None` if its schedule began it."""
    facts: Mapping[str, Any] | None = window.metadata.get(ARMED)
    return facts
