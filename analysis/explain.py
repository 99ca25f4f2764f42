"""Judges a recording: findings in the order of their cost, or the reason why there is no answer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np

from stepscope.analysis.findings import Answer, Finding, Place, RankAnswer, Share, processes
from stepscope.analysis.reading.recording import Recording, load
from stepscope.analysis.rules import RULES_OF_STEPS, RULES_OF_TASKS
from stepscope.analysis.rules.event_loops import loops_of, waiting_places
from stepscope.analysis.rules.evidence import Job, fastest_in
from stepscope.analysis.rules.operators import fused_optimizer, optimizer_share
from stepscope.analysis.rules.processors import machine_use
from stepscope.analysis.tables import data_pipeline
from stepscope.analysis.tables.collectives import Key
from stepscope.analysis.tables.devices import MOST_NAME, NAMES, Activity
from stepscope.analysis.tables.flops import peak_of
from stepscope.analysis.tables.parallel_layout import layout_of
from stepscope.analysis.tables.rank_summary import RankSummary, lines_of_loop, most_sampled
from stepscope.analysis.thresholds import COMMON, COVERED, DEVICE_BUSY, FEWEST_SAMPLES, FEWEST_STEPS, FINDING
from stepscope.runtime.display.text_table import human_count, human_time, printable, shorten
from stepscope.runtime.windows.step_facts import Phase
from stepscope.runtime.windows.step_parts import UNCOVERED, durations, in_median_step, is_uncovered, parts_of
from stepscope.runtime.windows.step_statistics import difference, statistics_of
from stepscope.runtime.windows.window import FLIGHT

MOST_TASK_NAMES = 8
"""Names of tasks in an answer."""
MOST_SAVED = 5
"""Steps for which windows were saved in an answer."""
SLOWER = 1.1
"""A saved step that took less than so many times the median is not explained."""
MOST_PLACES = 3
"""Places with most samples in an answer."""
NOT_ENOUGH = "There is not enough to judge."
NOTHING = "Nothing stands out: no cause takes 10 % of a step."
NOTHING_OF_TASKS = "Nothing stands out: nothing blocks the event loop for long or often, and no tasks or items pile up."
MERGED = (
    "This is a merge, in which the steps of all ranks are those of one process: name the directory that was merged."
)
MOSTLY = 0.5
"""Share of a step in code without a known purpose, from which on the answer names the place of that code."""


def explain(
    run: str | os.PathLike[str] | Recording, window: int | None = None, *, peak_flops: float | None = None
) -> Answer:
    """Says what is slow in a run, why, and what to try.

    Args:
        run: a path, as for `stepscope.load`, or what that has returned.
        window: number of the only one that is read and judged; default: all.
        peak_flops: floating-point operations in a second that the device of a process can do at most; default: what the run's
            metadata say.

    Raises:
        TypeError: if `peak_flops` is no number.
        ValueError: if `peak_flops` is not above 0.
        FileNotFoundError: if there is nothing of that name.
        FormatError: if there is no recording, or no such window (`NoWindowError`).
    """
    recording = run if isinstance(run, Recording) else load(run, None if window is None else (window,))
    if window is not None:
        recording.select(window)
    recording.declare_peak(peak_flops)
    return judge(recording, [RankSummary(rank) for rank in recording.ranks])


def refused(path: str, why: str) -> Answer:
    """The answer that there is no answer, with the reason."""
    return Answer(path=path, verdict=NOT_ENOUGH, refused=why)


def judge(recording: Recording, summaries: list[RankSummary]) -> Answer:
    """Does what `explain` does with ranks that were read already: one summary for each rank of the recording."""
    fastest = fastest_in(summaries)
    ranks = tuple(_rank_answer(summary, fastest) for summary in summaries)
    missing = sum((Counter(rank.missing) for rank in recording.ranks), Counter[str]())
    merged = any(rank.host == "merged" for rank in recording.ranks)
    steps = 0 if merged else max((len(summary.facts) for summary in summaries), default=0)
    tasks = sum(len(summary.tasks) + len(summary.callbacks) for summary in summaries)
    findings: tuple[Finding, ...] = ()
    refused = ""
    if merged or (steps < FEWEST_STEPS and not tasks):
        refused = MERGED if merged else _refusal(steps, summaries)
        idlest = max((each for rank in ranks for each in rank.devices), key=lambda each: each.idle, default=None)
        verdict = NOT_ENOUGH if idlest is None else f"{idlest.name} idles {idlest.idle:.0%} of the time."
    else:
        job = Job(summaries)
        findings = findings_of(job, steps)
        verdict = findings[0].title if findings else _nothing(job.main, steps)
    return Answer(
        path=str(recording.path),
        verdict=verdict,
        refused=refused,
        findings=findings,
        ranks=ranks,
        unknown=_unknown(summaries),
        layout=next((found for rank in recording.ranks if (found := layout_of(rank.metadata))), None),
        trust=_trust(recording, summaries, missing),
        missing=dict(missing),
    )


def findings_of(job: Job, steps: int) -> tuple[Finding, ...]:
    """The findings of the rules, the most costly first, one for each cause.

    Args:
        job: its processes.
        steps: the most that one of them has. With fewer than `FEWEST_STEPS`, rules that judge steps are left out.
    """
    rules = (*(RULES_OF_STEPS if steps >= FEWEST_STEPS else ()), *RULES_OF_TASKS)
    found = [finding for check in rules for finding in check(job)]
    found.sort(key=lambda one: (one.id in ENVIRONMENT, -(2.0 if one.cost is None else one.cost)))
    return without_echoes(found)


def _nothing(rank: RankSummary, steps: int) -> str:
    """The text if no rule finds anything: for a loop that no rule knows, the parts of its time."""
    if steps < FEWEST_STEPS:
        return NOTHING_OF_TASKS
    took = float(durations(rank.judged_steps).sum())
    spans = float(rank.phase(Phase.SPAN).sum()) / took
    uncovered = float(rank.uncovered().sum()) / took
    if busy := _busy_device(rank):
        return busy
    if spans + uncovered < MOSTLY:
        return _slow_optimizer(rank) or NOTHING
    named = rank.largest_span()
    parts = (
        [f"{spans:.0%} of each step is in spans of your own or of a library, most of it in {named}"]
        if spans >= FINDING and named
        else []
    )
    parts += [f"{uncovered:.0%} is in no span"] if uncovered >= FINDING else []
    return f"No fault that is known. {', '.join(parts)}."


def _slow_optimizer(rank: RankSummary) -> str:
    """The verdict of a run in which an optimizer that could be fused takes a part of the step; empty for others."""
    share, fused = optimizer_share(rank), fused_optimizer(rank)
    return (
        f"Nothing stands out. The optimizer takes {share:.0%} of each step: {fused}."
        if fused and share >= FINDING
        else ""
    )


def _busy_device(rank: RankSummary) -> str:
    """The verdict of a run whose steps wait for a device that computes; empty for others."""
    device = max(rank.devices, key=lambda device: device.computation_ns / (device.total_ns or 1), default=None)
    if device is None or device.computation_ns < DEVICE_BUSY * device.total_ns:
        return ""
    share = f"{device.computation_ns / device.total_ns:.0%} of the time"
    kernel = device.kernels[0] if device.kernels else None
    most = f", {kernel.share:.0%} of it in {shorten(printable(kernel.name), MOST_NAME)}" if kernel else ""
    return f"Nothing stands out: {device.name} computes {share}{most}. Quicker kernels make the steps quicker."


ENVIRONMENT = {"machine-shared"}
"""Findings about the program's environment. They come after those about the program itself."""
ECHOES = {
    "slow-rank": (
        "input-bound-in-process",
        "input-bound-iterator",
        "input-bound-workers",
        "input-bound-handover",
        "input-bound-pipeline",
        "slow-item",
        "uneven-work",
        "communication-exposed",
        "slow-steps",
    ),
    "uneven-work": ("communication-exposed", "slow-steps"),
    "interpreter-lock": ("processors-contended", "python-between-operators", "program-waits"),
    "value-read-back": ("python-between-operators", "tiny-operators"),
    "tiny-operators": ("python-between-operators",),
    "text-of-tensors": (
        "python-between-operators",
        "tiny-operators",
        "value-read-back",
        "slow-steps",
        "periodic-stall",
    ),
    "input-bound-in-process": ("slow-steps",),
    "input-bound-iterator": ("python-between-operators", "slow-steps"),
    "input-bound-pipeline": ("slow-steps",),
    "slow-item": ("input-bound-workers", "slow-steps", "periodic-stall"),
    "garbage-collection": ("slow-steps", "periodic-stall", "python-between-operators"),
    "loop-blocked": ("tasks-pile-up",),
    "queue-grows": ("tasks-pile-up",),
    "recompiles": (
        "slow-steps",
        "periodic-stall",
        "slow-backward-hook",
        "garbage-collection",
        "python-between-operators",
        "program-waits",
        "memory-grows",
    ),
}
"""The findings that each finding explains, by its id: they show the same cause in another way, and are left out."""

DEVICE_IDLE_CAUSES = {
    "slow-rank",
    "slow-item",
    "input-bound-in-process",
    "input-bound-iterator",
    "input-bound-workers",
    "input-bound-handover",
    "input-bound-pipeline",
    "value-read-back",
    "tiny-operators",
    "python-between-operators",
    "program-waits",
    "garbage-collection",
    "interpreter-lock",
    "slow-backward-hook",
}
"""Findings that make a device idle. If one of them costs as much as the idling, the idling is left out."""


def _rank_answer(summary: RankSummary, fastest: Mapping[Key, int]) -> RankAnswer:
    waits = waiting_places(summary)
    times = [each for loop in loops_of(summary) for each in loop.times(waits)]
    statistics = statistics_of(summary.facts, summary.judged_steps) if len(summary.judged_steps) else None
    pipelines = data_pipeline.measured(summary.pipelines)
    answer = RankAnswer(
        rank=summary.rank,
        name=summary.name,
        statistics=statistics,
        shares=_shares(summary) if statistics else (),
        startup_ns=summary.recorded.startup_ns,
        shutdown_ns=summary.recorded.shutdown_ns,
        tasks=tuple(times[:MOST_TASK_NAMES]),
        devices=summary.devices,
        flops=summary.flops.answer(summary.judged_steps, peak_of(summary.recorded.metadata)),
        memory=summary.memory.devices(summary.recorded.metadata),
        collectives=summary.collectives.answer(summary.judged_steps, fastest),
        pipelines=data_pipeline.answers(pipelines, machine_use(summary)),
        saved=_saved(summary),
        more_pipelines=max(len(pipelines) - data_pipeline.MOST_PIPELINES, 0),
    )
    if times:
        return answer
    return msgspec.structs.replace(answer, places=_places(summary, in_steps=answer.has_steps))


def _places(summary: RankSummary, *, in_steps: bool) -> tuple[Place, ...]:
    """The lines of the training loop in which most samples are; without steps, or where nearly all are in one line, the functions."""
    samples = summary.samples_in_steps() if in_steps else summary.samples
    if in_steps and len(samples) < FEWEST_SAMPLES:
        return ()
    lines = lines_of_loop(samples, MOST_PLACES) if in_steps else ()
    return lines if lines and lines[0].share < COMMON else most_sampled(samples, MOST_PLACES)


def _saved(summary: RankSummary) -> tuple[str, ...]:
    if not len(summary.facts):
        return ()
    texts: list[str] = []
    usual = float(np.median(durations(summary.facts)))
    for number, window in sorted(summary.recorded.windows.items()):
        about = window.metadata.get(FLIGHT)
        flight = cast(dict[str, Any], about) if isinstance(about, dict) else {}
        step = flight.get("step")
        facts = summary.facts[(summary.facts["window"] == number) & (summary.facts["step"] == step)]
        if len(facts) and durations(facts)[0] >= SLOWER * usual:
            why = str(flight.get("text") or flight.get("reason"))
            where = "" if why.startswith(f"step {step}") else f"step {step}: "
            texts.append(f"{where}{why}: {difference(summary.facts, facts[0])}")
    return tuple(texts[-MOST_SAVED:])


def _shares(summary: RankSummary) -> tuple[Share, ...]:
    """Parts of a step, the largest first, uncovered time last."""
    facts, step_ns = summary.judged_steps, summary.step_ns or 1.0
    times = in_median_step(facts, parts_of(facts))
    shares = [Share(name, ns, ns / step_ns) for name, ns in times.items() if ns or name == UNCOVERED]
    return tuple(sorted(shares, key=lambda share: (is_uncovered(share.name), -share.ns)))


def without_echoes(findings: list[Finding]) -> tuple[Finding, ...]:
    """Leaves out findings that another one explains: one cause that two rules see is reported once."""
    ids = {one.id for one in findings}
    hidden = {echo for name, echoes in ECHOES.items() if name in ids for echo in echoes}
    causes = max((one.cost or 0.0 for one in findings if one.id in DEVICE_IDLE_CAUSES), default=0.0)
    hidden |= {one.id for one in findings if one.id == "device-idle" and causes >= COVERED * (one.cost or 0.0)}
    return tuple(one for one in findings if one.id not in hidden)


def _refusal(steps: int, summaries: list[RankSummary]) -> str:
    if not summaries or not any(summary.events for summary in summaries):
        if any(summary.recorded.foreign for summary in summaries):
            return "Nothing was recorded: the trace has no events."
        return "Nothing was recorded: add TorchBackend() or spans, or run the program with `stepscope run`."
    if any(summary.recorded.foreign for summary in summaries):
        # The device's facts are reported all the same.
        count = "No steps were" if steps == 0 else "1 step was" if steps == 1 else f"{steps} steps were"
        return (
            f"{count} recorded; to judge steps, {FEWEST_STEPS} or more are needed: `schedule(wait=1, warmup=5, active=30)` and "
            "`prof.step()` at the end of each iteration."
        )
    if steps <= 1:
        return (
            "Steps are missing: one ends where the program calls profiler.step(), or an optimizer's step() under "
            "`stepscope run`. At most one such call was seen."
        )
    flight = any(FLIGHT in window.metadata for one in summaries for window in one.recorded.windows.values())
    how = "save longer windows (keep_last)" if flight else "record longer"
    return f"{human_count(steps, 'step')} were recorded; {FEWEST_STEPS} or more are needed: {how}."


def _trust(recording: Recording, summaries: list[RankSummary], missing: Counter[str]) -> str:
    dropped = sum((Counter(rank.dropped) for rank in recording.ranks), Counter[str]())
    events = sum(summary.events for summary in summaries)
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common(2))
    lost = f"{dropped.total():,} dropped ({reasons})" if dropped else "none dropped"
    if missing:
        times = " and ".join(f"{human_time(ns)} of {printable(name)}" for name, ns in missing.most_common(2))
        several = [rank.rank for rank in recording.ranks if rank.missing]
        where = f" in {processes(several)}" if len(several) > 1 else ""
        lost += f", {times} missing{where}"
    open_ = [rank for rank in recording.ranks if not rank.ended]
    was, runs = ("were", "run") if len(open_) > 1 else ("was", "runs")
    why = f"and {was} recovered" if all(rank.recovered for rank in open_) else f"or still {runs}"
    still = f"; {processes([rank.rank for rank in open_])} did not end in order, {why}" if open_ else ""
    notes = [*recording.notes, *(note for summary in summaries for note in summary.notes)]
    more = f"; {notes[0]}" if notes else ""
    if len(notes) > 1:
        more += f", and {human_count(len(notes) - 1, 'more problem')}"
    return f"{events:,} events, {lost}{still}{more}."


def _unknown(summaries: list[RankSummary]) -> tuple[str, ...]:
    """Facts that the data lack. Of torch only if the program uses it, of steps only if it has some."""
    missing: list[str] = []
    numbers: list[tuple[RankSummary, set[int]]] = [
        (summary, set(summary.judged_steps["step"].tolist())) for summary in summaries if len(summary.facts) > 1
    ]
    if len(numbers) > 1 and len(numbers[0][1].intersection(*(steps for _, steps in numbers))) < FEWEST_STEPS:
        which = ", ".join(f"{summary.name} {min(steps)} to {max(steps)}" for summary, steps in numbers[:4] if steps)
        missing.append(f"which rank others wait for (the ranks have few steps of the same numbers: {which})")
    stepping = [summary for summary in summaries if len(summary.facts) > 1]
    if not any(summary.samples or summary.has_python for summary in summaries):
        missing.append("lines of code (no stack samples)")
    if any(not np.isfinite(summary.judged_steps["cpu_ns"]).any() for summary in stepping):
        missing.append("processor time and memory of steps (no signals)")
    if any(summary.from_torchs_engine for summary in stepping):
        missing.append("whether memory grows (torch's profiler, in kineto mode, holds tensors until a window ends)")
    activities = [each for summary in summaries for device in summary.devices for each in device.meanwhile]
    if any(each.name == NAMES[Activity.PYTHON] for each in activities):
        missing.append("how much of the time in Python is the profiler's own (with_stack slows it down)")
    without = [summary for summary in stepping if not summary.judged_steps["operators"].any()]
    of_torch = ("enumerate(DataLoader)", "Optimizer.step", "torch.save")
    if any(summary.loaders or summary.row(*of_torch) for summary in without):  # something of it was recorded
        missing.append("operators (record torch with TorchBackend or `stepscope run`)")
    elif len(without) < len(stepping) and not any(summary.devices for summary in summaries):
        missing.append("device activity (none was recorded)")
    return tuple(missing)
