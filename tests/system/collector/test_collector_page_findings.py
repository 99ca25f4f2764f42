"""Findings on the live page, in a real browser: in words, with their ranks, and not disturbed by what comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stepscope.collector.app import Collector
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.views import LiveFinding
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream.step_summary import summary_of
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, SIGNALS, Phase
from tests.support.collecting import collecting, training, until
from tests.system.collector.test_collector_page import cell, look_at, quiet_page, violations
from tests.unit.collector.test_collector_live import START, run_of

STEPS = 640
STEP_NS = 20_000_000
CHEAP = LiveFinding(
    id="input-bound",
    title="Data is loaded late.",
    evidence=["The loader takes 1 ms."],
    action="use more workers",
    gain="1 ms a step",
    cost=0.02,
    certainty="likely",
    ranks=[0, 1],
    steps=[],
)
COSTLY = msgspec.structs.replace(
    CHEAP,
    id="slow-rank",
    title="Rank 1 holds the others up.",
    evidence=["<b>Its steps</b> take 30 ms.", "Those of the others take 10 ms."],
    action="look at its host",
    gain="steps of 10 ms",
    cost=0.47,
    certainty="certain",
    ranks=[1],
)


def shown(tmp_path: Path, findings: list[LiveFinding], look: Callable[[str], None]) -> None:
    """Looks at the page of a collector with two ranks and these findings."""
    look_at(lambda: two_ranks(tmp_path, findings), lambda url, _: look(url))


def two_ranks(directory: Path, findings: list[LiveFinding]) -> Collector:
    """A collector with these findings, one of whose ranks waits for its data."""
    collector = Collector(CollectorSettings(directory=directory, port=0), lambda _: findings)
    for rank in (0, 1):
        facts: Any = np.zeros(STEPS, FACTS_DTYPE)
        facts["step"] = np.arange(STEPS)
        facts["begin"] = START + STEP_NS * facts["step"]
        facts["end"] = facts["begin"] + STEP_NS
        facts["phases"][:, int(Phase.DATA)] = rank * STEP_NS // 4
        for signal in SIGNALS:
            facts[signal] = np.nan  # it could not be read
        stream = Stream(f"{rank:032x}", run_of(rank))
        stream.add_summary(summary_of(facts, events=0, lost=0))
        collector.streams.add(stream)
    return collector


def test_the_most_costly_finding_comes_first(tmp_path: Path) -> None:
    """With what to try; its evidence stays open while snapshots come; its ranks are chosen by buttons."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            found = page.get_by_role("list", name="Findings")
            found.get_by_text("Rank 1 holds the others up.").wait_for()
            text = found.inner_text()
            assert "It costs 47 % of the time (certain)." in text
            assert "Try: look at its host. Gain: steps of 10 ms." in text
            assert "Nothing" not in page.locator("#verdict").inner_text()
            assert page.locator(".verdict.bad").count() == 0, "a box without text"
            found.get_by_text("Evidence").click()
            page.wait_for_timeout(2500)
            evidence = found.locator("details")
            assert "<b>Its steps</b> take 30 ms." in evidence.inner_text()
            assert "steps of 2 ranks. Less costly: Data is loaded late." in evidence.inner_text()
            assert violations(page) == "[]"
            found.get_by_role("button", name="rank 1").click()
            assert page.get_by_label("Choose rank 1").is_checked()
            assert not page.get_by_label("Choose rank 0").is_checked()

    shown(tmp_path, [COSTLY, CHEAP], look)


def test_nothing_is_found(tmp_path: Path) -> None:
    """Then the page says in how many steps."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            page.get_by_text("Nothing stands out in up to").wait_for()

    shown(tmp_path, [], look)


def test_a_rank_has_died(tmp_path: Path) -> None:
    """The page names it, and does not say that nothing stands out."""

    def look(url: str, collector: Collector) -> None:
        collector.streams.ranks["job-1"].latest.seen -= 60
        with quiet_page() as page:
            page.goto(url)
            page.get_by_text("Died: rank 1.").wait_for()
            assert "Nothing" not in page.locator("#verdict").inner_text()

    look_at(lambda: two_ranks(tmp_path, []), look)


def test_counters_are_columns_where_there_are_some(tmp_path: Path) -> None:
    """The table can be sorted by them; one that no rank has is left out."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            page.get_by_role("button", name="Input", exact=True).press("Enter")
            assert [cell(page, 1, "Input"), cell(page, 0, "Input")] == ["25 %", "0.0 %"]
            assert page.locator("#rank-table tbody th").all_inner_texts() == ["rank 1", "rank 0"]
            assert "CPU" not in page.locator("#rank-table thead").inner_text()

    shown(tmp_path, [], look)


def test_processor_time_and_memory_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the process that trains measures them."""
    monkeypatch.delenv("STEPSCOPE_SIGNALS")
    with collecting(tmp_path) as collector, quiet_page() as page, training(collector.url, 0, steps=10_000):
        page.goto(collector.url)
        page.get_by_role("button", name="Memory").wait_for()
        until(lambda: cell(page, 0, "CPU").endswith("%") and cell(page, 0, "Memory").endswith("MiB"))
