"""How busy the machine is, and this process on it, as counters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.backends.counters.host_readings import HostReadings
from stepscope.runtime.settings.arguments import path_argument

HostPart = Literal["cpu", "memory", "disk", "network", "scheduling"]
PARTS: tuple[HostPart, ...] = get_args(HostPart)


class HostBackend(CountingBackend):
    """Records how busy the machine is, and this process on it, as counters of category `host`. It reads /proc, on a thread
    of its own. Where a cgroup limits the process, there are counters of that as well.

    Args:
        what: which figures: `cpu` (shares in %, and context switches), `memory` (bytes), `disk` and `network` (bytes in a
            second), `scheduling` (how often in a second the process was preempted, waited, and found a page missing).
        interval: seconds between two samples. The kernel counts the time of processors in hundredths of a second.
        root: where /proc and /sys of the machine are, if that is elsewhere, as in a container.
        name: of this source.

    Raises:
        ValueError: for a part that there is none of, with the nearest; if the interval is not above 0.
    """

    category = "host"

    def __init__(
        self,
        what: Sequence[HostPart] = PARTS,
        interval: float = 0.1,
        *,
        root: str | os.PathLike[str] = "/",
        name: str = "host",
    ) -> None:
        super().__init__(name, interval)
        self._parts = chosen("what", what, PARTS)
        self._readings = HostReadings(Path(path_argument("root", root)))

    def open(self, sink: Sink) -> None:
        """Starts the thread.

        Raises:
            BackendError: if the system tells none of the figures.
        """
        problems = [problem for part in self._parts if (problem := self._problem_of(part))]
        if len(problems) == len(self._parts):
            raise self._nothing(problems[0])
        super().open(sink)

    def _read(self) -> Iterator[Reading]:
        for part in self._parts:
            try:
                yield from self._readings.parts[part]()
            except (OSError, ValueError, KeyError, IndexError) as error:
                self._note(_text(part, error))

    def _rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        # Ticks of the kernel and our interval are not cut at the same moment.
        shares = {
            name: min(rate, 100.0) for name, rate in rates.items() if name.startswith("host") and name.endswith("%")
        }
        return {**rates, **shares}

    def _problem_of(self, part: str) -> str:
        try:
            found = list(self._readings.parts[part]())
        except (OSError, ValueError, KeyError, IndexError) as error:
            return _text(part, error)
        return "" if found else f"{part}: nothing is told"


def _text(part: str, error: Exception) -> str:
    return f"{part} cannot be read: {error}" if isinstance(error, OSError) else f"{part} cannot be read: {error!r}"
