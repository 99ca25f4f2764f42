"""Profilers of which one records all threads: `all_threads.py DIRECTORY CASE...`.

First, windows of such a profile follow each other while regions and operators of two threads are open.

A case is a row of calls. `A+L` starts a profile on thread A and `A-L` ends it; `A.` runs an operator there, `Ab` one with its
backward pass. `L` is live, `K` records with kineto, `G` with kineto on all threads; `k` and `g` are torch's own, `l` is its
`emit_itt`. Prints a line of JSON for each case: the operators that a profile should have and has not, those that it has twice,
and its notes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stepscope.torch as ours  # before torch: operators arrive live only then

torch: Any = __import__("torch")
CPU = [torch.profiler.ProfilerActivity.CPU]
OPERATORS = ("exp2", "atan", "tan", "sinh", "erf", "tanh", "log1p", "log", "sqrt", "neg", "floor", "ceil", "round")


def all_threads() -> Any:
    return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)


MAKE: dict[str, Callable[[], Any]] = {
    "L": lambda: ours.profile(activities=CPU, mode="stream"),
    "K": lambda: ours.profile(activities=CPU, mode="kineto"),
    "G": lambda: ours.profile(activities=CPU, experimental_config=all_threads()),
    "l": torch.autograd.profiler.emit_itt,
    "k": lambda: torch.profiler.profile(activities=CPU),
    "g": lambda: torch.profiler.profile(activities=CPU, experimental_config=all_threads()),
}


def start(kind: str) -> Any:
    profile = MAKE[kind]()
    profile.__enter__()
    return profile


def operate(name: str, backward: bool = False) -> None:
    result = getattr(torch, name)(torch.ones(2, requires_grad=backward))
    if backward:
        result.sum().backward()


def counts(profile: Any) -> dict[str, int]:
    return {row.key: row.count for row in profile.key_averages()}


def run(case: str, threads: dict[str, ThreadPoolExecutor]) -> dict[str, Any]:
    profiles: dict[str, Any] = {}
    active: dict[str, str] = {}
    wanted: dict[str, list[str]] = {}
    names = iter(OPERATORS)
    for thread, call, *kinds in case.split():
        on = threads[thread].submit
        if call in ".b":
            name = next(names)
            on(operate, name, call == "b").result(30)
            for kind, where in active.items():
                if where == thread or kind in "Gg":
                    wanted[kind].append(f"aten::{name}")
        elif call == "+":
            (kind,) = kinds
            profiles[kind] = on(start, kind).result(30)
            active[kind], wanted[kind] = thread, []
        else:
            (kind,) = kinds
            del active[kind]
            on(profiles[kind].__exit__, None, None, None).result(60)
    outcome: dict[str, Any] = {}
    for kind, profile in profiles.items():
        if kind == "l":
            continue
        found = counts(profile)
        outcome[kind] = {
            "lost": [name for name in wanted[kind] if name not in found],
            "twice": [name for name in wanted[kind] if found.get(name, 0) > 1],
            "notes": " ".join(profile.run.report().backends["torch"].notes) if kind in "LKG" else "",
        }
        if kind in "LKG":
            profile.raise_errors()
            assert profile.run.audit() == ()
    return outcome


def check_afterwards() -> None:
    """On the calling thread every kind of profile records, so nothing is left of those before."""
    for kind in "LKk":
        profile = start(kind)
        operate("sign")
        profile.__exit__(None, None, None)
        assert counts(profile)["aten::sign"] == 1, kind
    assert not torch.autograd._profiler_enabled()


def outlive() -> None:
    """A live profile inside of the program's recording of all threads stops to emit operators when that ends."""
    with torch.profiler.profile(activities=CPU, experimental_config=all_threads()):
        with MAKE["L"]():
            operate("sign")
    assert not torch.autograd._profiler_enabled()


def cross_borders() -> None:
    """Windows follow each other while regions of two threads, and an operator of one, are open."""
    ended = threading.Event()

    def elsewhere() -> None:
        matrix = torch.ones(300, 300)
        while not ended.is_set():
            with torch.profiler.record_function("elsewhere"):
                matrix @ matrix

    thread = threading.Thread(target=elsewhere)
    thread.start()
    schedule = ours.schedule(wait=0, warmup=0, active=1)
    with ours.profile(activities=CPU, schedule=schedule, experimental_config=all_threads()) as profile:
        for _ in range(150):
            with torch.profiler.record_function("across"):
                operate("exp2")
                profile.step()
                operate("atan")
    ended.set()
    thread.join()
    profile.raise_errors()
    assert counts(profile)["aten::atan"] == 1


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    outlive()
    cross_borders()
    for case in sys.argv[2:]:
        threads = {name: ThreadPoolExecutor(1) for name in "ABC"}
        print(json.dumps({"case": case, "profiles": run(case, threads)}), flush=True)
        for thread in threads.values():
            thread.submit(check_afterwards).result(60)
            thread.shutdown()
