"""Settings of a profiler that few users need to touch."""

from __future__ import annotations

import typing
from typing import Annotated, Literal

import msgspec

PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Slots = Annotated[int, msgspec.Meta(ge=64, le=1 << 24)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with their defaults; unknown fields are refused. Sizes in bytes, times in seconds."""

    ring_slots: Slots = 65_536
    """Size of one ring in events of 64 bytes, rounded up to a power of two. A thread that fills its ring before it is
    drained goes on in another. The first profiler of the process decides on rings."""
    ring_bytes: Annotated[int, msgspec.Meta(ge=1 << 12)] = 256 << 20
    """What all rings may hold together before events are dropped; every thread has one ring in any case."""
    overflow: Literal["drop_newest", "drop_oldest"] = "drop_newest"
    """What a full ring does. Either way it is counted, and shown as a gap."""
    session_dir: str | None = None
    """Where rings live; default: a private directory in /dev/shm, or the temporary directory where there is none."""
    drain_interval: PositiveFloat = 0.25
    """Longest time between two drains; rings that are half full call for one at once."""
    inbox_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 << 20
    """What backends may have waiting for the loop."""
    linger: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long a window waits for backends that have not delivered past its end."""
    queue_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 << 20
    """What may wait for one exporter; more is dropped for that exporter, and counted."""
    close_timeout: PositiveFloat = 5.0
    """Deadline for flushing and closing everything at the end."""
    journal: bool = True
    """Whether the run is journaled to its output directory (crash safety, `Window.export`)."""
    journal_max_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 8 << 30
    """Size at which the journal stops, with a marker and a count."""

    def __post_init__(self) -> None:
        """Checks every value, which msgspec does only for what it decodes.

        Raises:
            ValueError: naming the field, the value and what it should be.
        """
        check_fields(self)


def check_fields(settings: msgspec.Struct) -> None:
    """Checks that each field of a settings struct is what its annotation says.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise ValueError(f"{type(settings).__name__}.{name} is {value!r}: {error}") from error
