"""A trigger of one's own for the flight recorder: it saves the last steps when a counter jumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import stepscope as sc
from stepscope.runtime.events import strings


@dataclass(frozen=True)
class Jump:
    """One that has a name and an evaluator() is a trigger: settings, of which each profiler makes an evaluator."""

    counter: str
    factor: float
    name: str = "jump"

    def evaluator(self) -> JumpEvaluator:
        return JumpEvaluator(self)


class JumpEvaluator:
    def __init__(self, settings: Jump) -> None:
        self._settings, self._last = settings, 0.0

    def look(self, news: sc.triggers.News) -> Sequence[sc.triggers.Finding]:
        """Called some times a second on the background loop, so it must be quick, and wait for nothing."""
        found: list[sc.triggers.Finding] = []
        for _, events in news.blocks:
            mine = (events["kind"] == sc.exporters.Kind.COUNTER) & (
                events["name"] == strings.intern(self._settings.counter)
            )
            for at, value in zip(events["ts"][mine].tolist(), events["value"][mine].tolist(), strict=True):
                if 0 < self._last * self._settings.factor < value:
                    text = f"{self._settings.counter} went from {self._last:.3g} to {value:.3g}"
                    found.append(sc.triggers.Finding(at=at, value=value, text=text, severity=value / self._last))
                self._last = value
        return found


if __name__ == "__main__":
    recorder = sc.FlightRecorder(steps=4, triggers=(Jump("loss", factor=3),))
    with sc.trace(keep_last=recorder, output_dir="run") as profiler:
        for step in range(60):
            sc.counter("loss", 30.0 if step == 40 else 1.0)
            profiler.step()
    print(profiler.report())
