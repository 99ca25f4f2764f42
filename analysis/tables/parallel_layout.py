"""The layout of a job in an answer, from the metadata of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stepscope.analysis.findings import ParallelGroup, ParallelLayout
from stepscope.backends.parallel_layout import DECLARED, NOT_KNOWN, of_torch


def layout_of(metadata: Mapping[str, Any]) -> ParallelLayout | None:
    """The layout that a recording's metadata have, also those of a trace of torch; `None` where they have none that says how the job is
    divided, or something else under its name."""
    try:
        found = msgspec.convert(metadata.get(DECLARED) or of_torch(metadata), _Recorded, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError):
        return None
    layout = ParallelLayout(
        sizes=found.sizes,
        groups=found.groups,
        rank=found.rank,
        source=", ".join(found.source),
        problem=found.problem,
        sharding={
            name: value
            for name, value in found.sharding.items()
            if value not in ("", None) and not str(value).startswith(NOT_KNOWN)
        },
    )
    divided = found.sizes or layout.sharding or any(group.kind != "all" for group in found.groups)
    return layout if divided else None


def groups_of(layouts: Iterable[ParallelLayout]) -> list[ParallelGroup]:
    """The groups that do not hold all ranks, as any rank knows them, each once."""
    found = {(group.name, group.ranks): group for layout in layouts for group in layout.groups if group.kind != "all"}
    return [found[key] for key in sorted(found)]


def has_groups(metadata: Mapping[str, Any]) -> bool:
    """Whether a recording's metadata name a group of a part of the ranks."""
    layout = layout_of(metadata)
    return layout is not None and any(group.kind != "all" for group in layout.groups)


class _Recorded(msgspec.Struct, frozen=True):
    """The metadata, as `stepscope.backends.parallel_layout` makes them."""

    sizes: dict[str, int] = {}
    groups: tuple[ParallelGroup, ...] = ()
    source: tuple[str, ...] = msgspec.field(default=(), name="from")
    rank: int | None = None
    problem: str = ""
    sharding: dict[str, Any] = {}
