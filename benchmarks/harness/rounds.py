"""Interleaved rounds: A B C, B C A, ... so that what else the machine does meets all tools alike."""

from __future__ import annotations

import statistics

import msgspec

from benchmarks.harness.row import Contender, Row, Sample, Tool
from benchmarks.harness.scale import Scale
from benchmarks.harness.worker import Answer, Request
from benchmarks.harness.worker_processes import WorkerDiedError, WorkerProcesses


class Measured(msgspec.Struct, frozen=True):
    """The samples of one contender."""

    tool: Tool
    label: str
    samples: tuple[Sample, ...] = ()
    why_not: str = ""
    """Why it was not measured."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.samples else None

    @property
    def values(self) -> list[float]:
        return [sample.value for sample in self.samples]

    @property
    def baseline(self) -> float | None:
        """Median of the baselines that were subtracted."""
        found = [sample.baseline for sample in self.samples if sample.baseline is not None]
        return statistics.median(found) if found else None

    @property
    def facts(self) -> dict[str, float]:
        """Medians of what else is to be known."""
        names = dict.fromkeys(name for sample in self.samples for name in sample.facts)
        return {name: statistics.median(s.facts[name] for s in self.samples if name in s.facts) for name in names}


class _Turn:
    """One contender while its row is measured."""

    def __init__(self, workers: WorkerProcesses, row: Row, contender: Contender, scale: Scale) -> None:
        self._workers, self._row, self._contender, self._scale = workers, row, contender, scale
        self.samples: list[Sample] = []
        self.why_not = ""

    def ask(self, do: str) -> Answer:
        if self.why_not:
            return Answer()
        request = msgspec.convert(
            {"do": do, "row": self._row.key, "label": self._contender.label, "scale": self._scale.name}, Request
        )
        tool = self._contender.tool
        try:
            answer = self._workers.process(tool).ask(request)
        except WorkerDiedError as error:
            self._workers.dismiss(tool)
            answer = Answer(failed=str(error))
        self.why_not = answer.missing or answer.failed
        return answer

    def measure(self, number: int) -> None:
        if number % self._contender.every:
            return
        if self._row.fresh:
            self._workers.dismiss(self._contender.tool)
            self.ask("enter")
        sample = self.ask("round").sample
        if sample is not None:
            self.samples.append(sample)
        if self._row.fresh:
            self.ask("leave")
            self._workers.dismiss(self._contender.tool)

    def measured(self) -> Measured:
        return Measured(self._contender.tool, self._contender.label, tuple(self.samples), self.why_not)


def measure(workers: WorkerProcesses, row: Row, scale: Scale) -> tuple[Measured, ...]:
    """Measures a row; first come one or two rounds that do not count, as caches and pools are still empty in them."""
    turns = [_Turn(workers, row, contender, scale) for contender in row.contenders]
    if not row.fresh:
        for turn in turns:
            turn.ask("enter")
            turn.ask("round")
    for number in range(row.rounds(scale)):
        for place in range(len(turns)):
            turns[(number + place) % len(turns)].measure(number)
    if not row.fresh:
        for turn in turns:
            turn.ask("leave")
    return tuple(turn.measured() for turn in turns)
