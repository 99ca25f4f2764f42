"""Which windows are given up first, and which are kept longest, when there is not room for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Annotated

import msgspec

from stepscope.runtime.settings.checked import Checked

Count = Annotated[int, msgspec.Meta(ge=0)]


class StoragePolicy(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept when there is not room for all. Unknown fields are refused."""

    max_bytes: Count = 0
    """On disk, of everything that the collector writes; 0: no limit."""
    newest: Count = 8
    """Windows that are given up after the slowest."""
    slowest: Count = 8
    """Windows that are given up after all others, by the mean of their steps on the slowest rank."""

    @property
    def slack(self) -> int:
        """Bytes that may be written between two looks: above the limit less these something is given up, down to twice these."""
        return self.max_bytes // 16


class Held(msgspec.Struct, frozen=True):
    """A window of one stream, as far as it takes room."""

    stream: str
    group: Hashable
    """The same for what is one window of several ranks: it is kept, or given up, on all of them."""
    window: int
    nbytes: int
    """That giving it up would free."""
    end_ns: int
    """Unix time of its end, or of its latest event, no later than that was seen: a rank's clock may be wrong."""
    step_ns: float
    """Mean duration of its steps; 0 if there is none."""
    closed: bool = True
    copied: bool = True
    """Whether it is elsewhere as well, if everything is to be copied."""


class Ranking(msgspec.Struct, frozen=True):
    """Windows by how dear they are."""

    given_up: list[list[Held]]
    """Windows of all ranks that are to be given up whole, one after the other, until there is room."""
    dear: frozenset[Hashable]
    """Groups of those that are among the newest or the slowest."""
    trimmed: list[Held]
    """Windows that are still open, on one rank at least: when nothing else is left they give up their oldest events."""
    last: list[Held]
    """The newest window that is closed: it does so after those."""


def ranking(held: Sequence[Held], policy: StoragePolicy) -> Ranking:
    """What to give up, in which order.

    First come closed windows that are neither among the newest nor the slowest, the oldest first; then the slowest ones,
    the least slow first; then the newest ones, but for the last. What is to be copied and was not yet comes after what was.

    Args:
        held: every window of every stream.
        policy: what is dear.
    """
    groups: defaultdict[Hashable, list[Held]] = defaultdict(list)
    for one in held:
        groups[one.group].append(one)
    closed = [group for group in groups.values() if all(one.closed for one in group)]
    closed.sort(key=lambda group: max(one.end_ns for one in group))
    newest = closed[max(len(closed) - policy.newest, 0) :]
    dear: set[Hashable] = {group[0].group for group in newest}
    by_pace = sorted(closed, key=lambda group: max(one.step_ns for one in group))
    slowest = [group for group in by_pace[max(len(by_pace) - policy.slowest, 0) :] if group[0].group not in dear]
    dear |= {group[0].group for group in slowest}
    others = [group for group in closed if group[0].group not in dear]
    order = [*others, *slowest, *newest[:-1]]
    order.sort(key=lambda group: not all(one.copied for one in group))
    return Ranking(
        [[one for one in group if one.nbytes] for group in order],
        frozenset(dear),
        [one for group in groups.values() if not all(one.closed for one in group) for one in group],
        [one for group in newest[-1:] for one in group],
    )
