"""Rules: each is checked, and stands in the documentation."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from stepscope.analysis import thresholds
from stepscope.analysis.rules import RULES_OF_STEPS, RULES_OF_TASKS
from stepscope.analysis.rules.slow_steps import period_of
from tests.support.basics import ROOT

PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8").partition("## Rules\n")[2]
ROW = re.compile(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|", re.MULTILINE)
THRESHOLDS: Mapping[str, str] = {
    "input-bound": "FINDING USUAL_STEPS HANDOVER",
    "data-pipeline": "FINDING USUAL_STEPS",
    "slow-item": "FINDING FEWEST_SLOW_ITEMS SLOW_ITEM MAJORITY MAJORITY",
    "slow-rank": "RANK_WAIT RANK_LAST RANK_LONGER",
    "uneven-work": "UNEVEN_WORK RANK_LAST",
    "object-collectives": "FINDING FEWEST_SAMPLES",
    "many-collectives": "MANY_COLLECTIVES FINDING",
    "periodic-stall": "SLOW_STEP SLOW_STEPS_COST PERIODS_SLOW FEWEST_LATE_STEPS PERIODIC",
    "slow-steps": "SLOW_STEP SLOW_STEPS_COST COVERED",
    "workers-restart": "MAJORITY",
    "recompiles": "FEWEST_PERIODS FINDING",
    "memory-grows": "GROWTH_PER_100_STEPS GROWTH_BYTES LATE_GROWTH RECORDED_BYTES",
    "garbage-collection": "FINDING",
    "tiny-operators": "MANY_OPERATORS TINY_OPERATOR_NS",
    "value-read-back": "READ_BACKS FINDING",
    "slow-optimizer": "MAJORITY",
    "processors-contended": "RUN_QUEUE OVERSUBSCRIBED OVERSUBSCRIBED_WITH_OTHERS",
    "interpreter-lock": "OTHER_THREAD FINDING",
    "slow-backward-hook": "FINDING FEWEST_SAMPLES",
    "anomaly-detection": "ANOMALY FEWEST_SAMPLES",
    "text-of-tensors": "FINDING FEWEST_SAMPLES",
    "forced-writes": "FINDING",
    "saves-and-logs": "FINDING FINDING MOST_SLOW_STEPS",
    "python-between-operators": "FINDING UNCOVERED_PLACE NO_PLACE",
    "not-finite": "",
    "device-idle": "DEVICE_IDLE FINDING",
    "communication-exposed": "FINDING",
    "copies-exposed": "FINDING",
    "loop-blocked": "LOOP_BLOCKED BLOCKED_NS LOOP_OFTEN_BLOCKED BRIEFLY_BLOCKED_NS",
    "tasks-never-end": "FEWEST_OPEN_TASKS MAJORITY",
    "tasks-pile-up": "FEWEST_OPEN_TASKS TASKS_SLOWER",
    "queue-grows": "QUEUE_GROWTH",
}
"""By rule: the thresholds whose values its row has, in order."""


def test_every_rule_is_checked_and_documented() -> None:
    """The rule `memory-grows` is checked by `check_memory_grows`."""
    checked = [rule.__name__ for rule in (*RULES_OF_STEPS, *RULES_OF_TASKS)]
    assert sorted(checked) == sorted(f"check_{name.replace('-', '_')}" for name in dict(ROW.findall(PAGE)))
    files = [
        importlib.import_module(f"stepscope.analysis.rules.{path.stem}")
        for path in (ROOT / "analysis" / "rules").glob("[!_]*.py")
    ]
    assert sorted(checked) == sorted(name for file in files for name in vars(file) if name.startswith("check_"))


@pytest.mark.parametrize(("rule", "text"), ROW.findall(PAGE))
def test_documented_thresholds_are_those_of_the_rule(rule: str, text: str) -> None:
    """Each number of the column, with its unit, is the value of a threshold that the rule uses, itself or by what it calls."""
    names = THRESHOLDS[rule].split()
    numbers = re.findall(r"\d[\d.,]*(?:%| times| MiB| ms| us)?", text.replace("in 100 steps", ""))
    assert numbers == [_shown(name, getattr(thresholds, name)) for name in names]
    checks = {check.__name__: check for check in (*RULES_OF_STEPS, *RULES_OF_TASKS)}
    module = importlib.import_module(checks[f"check_{rule.replace('-', '_')}"].__module__)
    called = {getattr(value, "__module__", "") for value in vars(module).values()}
    users = [module, *(importlib.import_module(name) for name in called if name.startswith("stepscope.analysis."))]
    assert set(names) <= {name for user in users for name in vars(user)}


def _shown(name: str, value: float) -> str:
    """A threshold as the documentation has it."""
    if name.endswith("_NS"):
        return f"{value / 1e6:g} ms" if value >= 1e6 else f"{value / 1e3:g} us"
    if isinstance(value, float):
        return f"{value:.0%}" if value < 1 else f"{value:g} times"
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value:,}"


@pytest.mark.parametrize(
    ("slow", "period"), [(range(0, 100, 20), 20), (range(40, 100, 20), 20), (range(95, 100, 2), 0), ([10, 50, 51], 0)]
)
def test_slow_steps_have_a_period(slow: Iterable[int], period: int) -> None:
    """Since the first of them, if that is not just before the end."""
    positions = np.array(list(slow), np.int64)
    assert period_of(positions, np.ones(len(positions)), 100) == period
