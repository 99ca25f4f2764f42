"""Links from forward operators to the autograd nodes that they made, found by sequence number.

Rule, as torch.profiler has it: autograd numbers its nodes per thread. An operator that may make a node is recorded
with the number that the next node will have; a node is recorded with its own. So of the operators with a node's
number the one that began last made it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block, join_blocks

ENGINE = "autograd::engine::evaluate_function: "
"""torch's span around each node; the rest of its name is that of the node's span."""
SEQUENCE = "Sequence number"
PENDING = 1 << 16
"""Forward operators that may wait for their node; beyond it the oldest are dropped."""

_link_ids = count(1)


class ForwardBackwardLinker:
    """Links the spans of one window. Takes them in any order of batches in which a node comes after its operator."""

    def __init__(self) -> None:
        self._key = strings.intern(SEQUENCE)
        self._name = strings.intern("fwdbwd")
        self._category = strings.category("fwdbwd")
        self._nodes = _NodeNames()
        self._pending = empty_block()
        self.dropped = 0
        """Operators dropped because too many waited."""

    def feed(self, events: Block) -> Block:
        """Takes more spans of the window.

        Returns:
            A start and an end event for each link found: category and name `fwdbwd`, one `id` for both.
        """
        numbered = events[
            (events["kind"] == Kind.SPAN) & (events["flags"] & Flag.ARG_INLINE != 0) & (events["args_at"] == self._key)
        ]
        if not len(numbered):
            return empty_block()
        nodes = self._nodes.mask(numbered["name"])
        self._pending = _latest(join_blocks([self._pending, numbered[~nodes]]))
        ends = numbered[nodes]
        starts, found = self._match(ends)
        if len(self._pending) > PENDING:
            order = np.argsort(self._pending["ts"])
            self.dropped += len(order) - PENDING // 2
            self._pending = self._pending[np.sort(order[-PENDING // 2 :])]
        return self._links(starts, ends[found])

    def _match(self, nodes: Block) -> tuple[Block, NDArray[np.bool_]]:
        """Takes each node's operator out of those that wait; says which nodes have one."""
        own = _find(_keys(self._pending), _keys(nodes))
        # Autograd may run a node on another thread than the operator ran on: then the number alone must do.
        other = own < 0
        if other.any():
            order = np.lexsort((self._pending["ts"], self._pending["args_len"]))
            at = _find(self._pending["args_len"][order], nodes["args_len"][other])
            at[at >= 0] = order[at[at >= 0]]
            early: Any = self._pending["ts"][at] < nodes["ts"][other] if len(self._pending) else False
            own[other] = np.where((at >= 0) & early, at, -1)
        # A node that runs twice is linked once, as the first one took its operator.
        matched, first = np.unique(own, return_index=True)
        found = np.zeros(len(nodes), np.bool_)
        found[first[matched >= 0]] = True
        starts = self._pending[own[found]]
        self._pending = np.delete(self._pending, own[found])
        return starts, found

    def _links(self, starts: Block, ends: Block) -> Block:
        links = empty_block(2 * len(starts))
        links["name"], links["category"] = self._name, self._category
        links["id"] = np.repeat([next(_link_ids) for _ in range(len(starts))], 2)
        for half, kind, spans in ((links[0::2], Kind.FLOW_START, starts), (links[1::2], Kind.FLOW_END, ends)):
            half["kind"] = kind
            half["ts"], half["track"], half["parent"] = spans["ts"], spans["track"], spans["id"]
        return links


class _NodeNames:
    """Knows which names are those of autograd's nodes: those that the engine's spans have as well."""

    def __init__(self) -> None:
        self._serial = 0
        self._ids = np.zeros(0, np.uint32)

    def mask(self, names: NDArray[np.uint32]) -> NDArray[np.bool_]:
        serial, new = strings.since(self._serial)
        self._serial = serial
        nodes = [strings.intern(text.removeprefix(ENGINE)) for _, text in new if text.startswith(ENGINE)]
        if nodes:
            self._ids = np.array(sorted({*self._ids.tolist(), *nodes}), np.uint32)
        return np.isin(names, self._ids)


def _keys(spans: Block) -> NDArray[np.uint64]:
    keys: Any = spans["track"].astype(np.uint64) << np.uint64(32) | spans["args_len"]
    return keys  # type: ignore[no-any-return]


def _latest(spans: Block) -> Block:
    """The span that began last, among spans with the same track and number; sorted by track and number."""
    keys = _keys(spans)
    order = np.lexsort((spans["ts"], keys))
    keys = keys[order]
    last = np.ones(len(keys), np.bool_)
    last[:-1] = keys[1:] != keys[:-1]
    return spans[order[last]]


def _find(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    """Index of the last of each wanted key in sorted keys, -1 where there is none."""
    at = np.searchsorted(keys, wanted, side="right") - 1
    if not len(keys):
        return at
    return np.where((at >= 0) & (keys[at] == wanted), at, -1)
