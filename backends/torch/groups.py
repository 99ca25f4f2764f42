"""Process groups of torch.distributed, read while they exist: at the begin and end of windows."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

MAX_READINGS = 512
"""Readings that are remembered."""


class GroupReadings:
    """The readings of this process. A program may destroy its process group long before a window is exported."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=MAX_READINGS)
        self.problem = ""
        """Facts that this version of torch does not have; empty if it has all."""

    def record(self, at: int) -> None:
        """Reads now, as a window begins or ends at this time, in ns; on the thread that trains."""
        self._readings.append((at, self.read()))

    def of_window(self, end_ns: int) -> Mapping[str, Any]:
        """The groups at the end of the window, or else at its begin; if neither is known, those of now."""
        readings = [facts for at, facts in list(self._readings) if at <= end_ns][-2:]
        return next((facts for facts in reversed(readings) if facts), {} if readings else self.read())

    def read(self) -> Mapping[str, Any]:
        """As torch's profiler writes it into traces, for tools that tell ranks apart; empty if there is no process group."""
        dist: Any = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return {}
        facts: dict[str, Any] = {}
        try:
            facts["backend"] = dist.get_backend()
            facts["rank"] = dist.get_rank()
            facts["world_size"] = dist.get_world_size()
            facts["pg_count"] = dist.get_pg_count()
            # The only place that needs what is private in torch.distributed.
            facts["pg_config"] = json.loads(json.dumps(dist.distributed_c10d._world.pg_config_info, default=str))
        except Exception as error:
            names = ", ".join(facts) or "nothing"
            self.problem = f"traces tell of process groups {names} only, not all: {type(error).__name__}: {error}"
        return {"distributedInfo": facts}


groups = GroupReadings()
"""Those of this process."""
