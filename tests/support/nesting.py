"""The nesting of spans in every output: on one track they nest, each lies in its parent, and self times add up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, join_blocks
from stepscope.runtime.journal.reader import JournalReader

CUT = int(Flag.CLIPPED | Flag.OPEN)
"""Of a span that is cut at a border, the self time is a share."""


def overlaps(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of spans (begin, end) of one track, those that overlap another without lying in it or around it."""
    wrong: list[tuple[int, int]] = []
    open_ends: list[int] = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            wrong.append((begin, end))
        open_ends.append(end)
    return wrong


def journal_spans(path: Path) -> Block:
    """All spans of an undamaged journal but those of steps."""
    with JournalReader(path) as reader:
        found = [item.events for item in reader if isinstance(item, EventBatch)]
        assert not reader.damage
    events = join_blocks(found)
    steps = [name for name in np.unique(events["name"]) if strings.text(int(name)) == "ProfilerStep"]
    spans: Block = events[(events["kind"] == int(Kind.SPAN)) & ~np.isin(events["name"], steps)]
    return spans


def _shown(row: Any) -> str:
    return f"{strings.text(int(row['name']))} [{row['ts']}, {row['ts'] + row['dur']}] flags {row['flags']}"


def journal_problems(spans: Block) -> list[str]:
    """Faults in the spans of a journal; those drawn as async pairs may overlap."""
    problems: list[str] = []
    nested = spans[(spans["flags"] & int(Flag.ASYNC)) == 0]
    strays = set(spans["track"][(spans["flags"] & int(Flag.ASYNC)) != 0].tolist())
    rows: dict[int, list[Any]] = defaultdict(list)
    for row in nested:
        rows[int(row["track"])].append(row)
    by_id = {int(row["id"]): row for row in nested}
    inside: dict[int, int] = defaultdict(int)
    for track, found in rows.items():
        wrong = overlaps((int(row["ts"]), int(row["ts"] + row["dur"])) for row in found)
        problems += [f"track {track}: the span {span} overlaps another" for span in wrong]
        for row in found:
            above = by_id.get(int(row["parent"]))
            if above is None or above["track"] != row["track"]:
                continue
            inside[int(row["parent"])] += int(row["dur"])
            if row["ts"] < above["ts"] or row["ts"] + row["dur"] > above["ts"] + above["dur"]:
                problems.append(f"track {track}: {_shown(row)} reaches out of its parent {_shown(above)}")
    for row in nested:
        expected = int(row["dur"]) - inside[int(row["id"])]
        if not 0 <= row["self_dur"] <= row["dur"]:
            problems.append(f"self time {row['self_dur']} of {row['dur']}")
        elif row["self_dur"] != expected and int(row["track"]) not in strays and not row["flags"] & CUT:
            problems.append(f"track {row['track']}: self time {row['self_dur']}, should be {expected}")
    return problems


def chrome_problems(path: Path) -> list[str]:
    """Faults in a Chrome file: complete events that overlap on one row, rows with two names."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    names: dict[tuple[int, int], set[str]] = defaultdict(set)
    for event in events:
        if event.get("ph") == "X":
            begin = round(event["ts"] * 1000)
            rows[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
        elif event.get("ph") == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]].add(event["args"]["name"])
    problems = [f"row {row} has the names {found}" for row, found in names.items() if len(found) > 1]
    for row, spans in rows.items():
        problems += [f"row {row}: the span {span} overlaps another" for span in overlaps(spans)]
    return problems
