"""Traces that torch.profiler saved, as recordings: any layout, several ranks, damaged ones, hostile names."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import DeviceAnswer
from stepscope.analysis.page.render import answer_html, report_html
from stepscope.analysis.tables.devices import DeviceBuilder, answers
from stepscope.analysis.tables.rank_summary import arguments
from stepscope.analysis.terminal import show
from stepscope.runtime.errors import FormatError
from tests.support.basics import html_of
from tests.support.commands import python, stepscope
from tests.support.torch_trace import kernel, kineto_text, loop, rows, save, span, step

EVENTS = [*rows(), *loop()]
WHOLE = {"schemaVersion": 1, "traceEvents": EVENTS}
LAYOUTS: dict[str, Callable[[], bytes]] = {
    "kineto": lambda: kineto_text(EVENTS),
    "compact": lambda: json.dumps(WHOLE, separators=(",", ":")).encode(),
    "lines": lambda: json.dumps(WHOLE, indent=1).encode(),
    "indented": lambda: json.dumps({**WHOLE, "after": [{"a": {"b": 1}}, {}]}, indent=2).encode(),
    "names last": lambda: json.dumps({**WHOLE, "traceEvents": [*loop(), *rows()]}).encode(),
    "compressed": lambda: gzip.compress(kineto_text(EVENTS)),
}


def shown(path: Path) -> str:
    """The text that the terminal shows."""
    text = io.StringIO()
    show(explain(path), Console(file=text, width=120, force_terminal=True, color_system=None, highlight=False))
    return text.getvalue()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_read(layout: str, tmp_path: Path) -> None:
    """With the same steps, devices and names."""
    path = tmp_path / ("a.json.gz" if layout == "compressed" else "a.json")
    path.write_bytes(LAYOUTS[layout]())
    (rank,) = sc.load(path).ranks
    assert rank.steps["step"].tolist() == list(range(30)) and (np.diff(rank.steps["begin"]) == 1_000_000).all()
    events = rank.events()
    names = rank.names(events["name"])
    assert names.count("gemm") == names.count("aten::mm") == 30 and rank.pid == 4242
    assert list(rank.windows) == [0] and len(rank.windows[0].steps) == 30 and not rank.dropped
    launched = events[np.array(names) == "cudaLaunchKernel"]
    assert launched["step"].tolist() == list(range(30)) and (launched["dur"] == 20_000).all()
    answer = explain(path)
    (device,) = answer.ranks[0].devices
    assert device.name == "GPU 0" and device.computation_ns == device.busy_ns == 25 * 200_000, (
        "the first steps are not judged"
    )
    assert device.total_ns == 24 * 1_000_000 + 990_000 == device.busy_ns + device.idle_ns
    assert answer.findings[0].id == "device-idle" and "none dropped" in answer.trust


def test_arguments_are_those_of_their_events(tmp_path: Path) -> None:
    """Also where a file is read in several slices."""
    path = save(tmp_path / "a.pt.trace.json", [*rows(), *loop(3_000)])
    (rank,) = sc.load(path).ranks
    batches = list(rank.batches())
    assert len(batches) > 3
    found = [
        int(arguments(batch, event)["correlation"])
        for batch in batches
        for event, name in zip(batch.events, rank.names(batch.events["name"]), strict=True)
        if name == "cudaLaunchKernel"
    ]
    assert found == list(range(3_000))
    assert len(rank.events()) == len(rank.events(0)) and len(rank.events(1)) == 0


def test_activity_of_the_host_meanwhile(tmp_path: Path) -> None:
    """Each nanosecond once, the most special activity first; a thread that only waits does not count, nor do two streams twice."""
    events = [
        *rows(),
        kernel("first", 0, 10),
        span("python_function", "train.py(1): main", 0, 1_000),
        span("cpu_op", "aten::mm", 100, 200),
        span("cpu_op", "aten::empty", 150, 50),
        span("cuda_runtime", "cudaLaunchKernel", 250, 40),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 400, 100),
        span("cpu_op", "aten::stack", 420, 50),
        span("cuda_runtime", "cudaMalloc", 600, 30),
        span("cuda_runtime", "cudaDeviceSynchronize", 700, 100),
        span("python_function", "threading.py(359): wait", 0, 5_000, tid=9),
        kernel("a", 300, 50),
        kernel("b", 310, 60, stream=8),
        kernel("Memcpy HtoD", 340, 70, stream=9, category="gpu_memcpy"),
        kernel("ncclDevKernel", 380, 10, stream=10),
        kernel("Memset", 1_100, 10, category="gpu_memset"),
    ]  # fmt: skip
    (device,) = explain(save(tmp_path / "a.json", events)).ranks[0].devices
    assert (device.computation_ns, device.communication_ns, device.copy_ns) == (90_000, 10_000, 30_000)
    assert (device.total_ns, device.busy_ns, device.idle_ns) == (1_110_000, 130_000, 980_000)
    meanwhile = {activity.name: activity.ns for activity in device.meanwhile}
    assert meanwhile == {
        "Python": 460_000,
        "operators": 160_000,
        "launching kernels": 40_000,
        "waiting for data": 90_000,
        "other calls of the device's runtime": 30_000,
        "waiting for the device": 100_000,
        "no known activity": 100_000,
    }
    names = {activity.name: [(name.name, name.ns) for name in activity.names] for activity in device.meanwhile}
    assert sorted(names["operators"]) == [("aten::empty", 50_000), ("aten::mm", 110_000), ("aten::stack", 50_000)]
    assert [(one.name, one.count) for one in device.kernels[:2]] == [("b", 1), ("a", 1)]
    assert sum(one.share for one in device.kernels) == pytest.approx(1)


def test_the_memory_for_names_is_bounded(tmp_path: Path) -> None:
    """Beyond it, what the host did is known, but not in which spans."""
    (rank,) = sc.load(save(tmp_path / "a.json", EVENTS)).ranks
    found: list[DeviceAnswer] = []
    for most_spans in (1_000, 10):
        builder = DeviceBuilder(most_spans)
        for batch in rank.batches():
            builder.update(batch.events)
        found += answers([(builder, None)])
    named, nameless = ([len(activity.names) for activity in device.meanwhile] for device in found)
    assert all(named[:-1]) and not any(nameless), "the last is what nothing covers"
    assert [activity.ns for activity in found[0].meanwhile] == [activity.ns for activity in found[1].meanwhile]


def test_a_trace_without_steps_has_device_facts(tmp_path: Path) -> None:
    """Steps are not judged, though annotations repeat."""
    events = [event for event in EVENTS if not event["name"].startswith("ProfilerStep")]
    events += [span("user_annotation", "forward", 1_000.0 * number, 500) for number in range(30)]
    path = save(tmp_path / "a.json", events)
    answer = explain(path)
    assert answer.refused and "prof.step()" in answer.refused and not answer.findings
    assert answer.ranks[0].devices[0].idle == pytest.approx(0.795, abs=0.01)
    assert "GPU 0 idles 79% of the time" in shown(path) and "idles 79 % of the time" in answer_html(answer)
    page = report_html(path)
    assert "GPU 0: idle 79 % of the time" in page and "No steps were recorded" in page
    report = json.loads(stepscope("explain", "--json", path, cwd=tmp_path).stdout)
    assert report["ranks"][0]["devices"][0]["computation_ns"] == 6_000_000


def test_a_directory_of_ranks(tmp_path: Path) -> None:
    """The file, or its name, has the rank; a file for each cycle of the schedule is a window."""
    for cycle, number in ((1_700_000_000_002, 10), (1_700_000_000_001, 0)):
        events = [*rows(), *(event | {"ts": event["ts"] + 1_000.0 * number} for event in loop(10))]
        for event in events:
            if event["name"].startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) + number}"
        save(tmp_path / f"host_7.{cycle}.pt.trace.json", events, distributedInfo={"rank": 1, "world_size": 3})
    (tmp_path / "below").mkdir()
    save(tmp_path / "below" / "rank-0.json.gz", EVENTS)
    save(tmp_path / "rank2.json", EVENTS)
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "broken.pt.trace.json").write_text("{")
    recording = sc.load(tmp_path)
    assert [rank.rank for rank in recording.ranks] == [0, 1, 2]
    assert [len(rank.windows) for rank in recording.ranks] == [1, 2, 1]
    assert recording.ranks[1].steps["step"].tolist() == list(range(20))
    assert len(recording.notes) == 1 and "broken.pt.trace.json" in recording.notes[0]
    answer = explain(tmp_path)
    assert [len(rank.devices) for rank in answer.ranks] == [1, 1, 1]
    idle = answer.ranks[1].devices[0]
    assert idle.total_ns == 4_990_000 + 9_990_000, "time between windows is no idling"
    assert "rank" in shown(tmp_path) and "ranks[0]" in html_of(recording)
    save(tmp_path / "other.json", EVENTS, distributedInfo={"rank": 0})
    assert any("same rank" in note for note in sc.load(tmp_path).notes)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.json", b"", "empty"),
        ("a.json", b" \n", "empty"),
        ("a.json", b"hello", "no JSON object"),
        ("a.json", b"[1]", "no JSON object"),
        ("a.json", b'{"a": 1}', "no traceEvents"),
        ("a.json", b'{"a": 1, "traceEve', "cut before its events"),
        ("a.json", b'{"traceEvents": 3}', "no traceEvents"),
        ("a.json", b'{"schemaVersion": 1, "baseTimeNanoseconds": "x", "traceEvents": []}', "baseTimeNanoseconds"),
        ("a.json", b'{"a":' + b"[" * 100_000, "no JSON"),
        ("a.json", b'{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1}]}', "nothing in its first events is of torch"),
        ("a.json.gz", b"\x1f\x8bjunk and more junk", "damaged"),
        ("a.json.gz", gzip.compress(b"{}" * 99, mtime=0)[:20], "is cut"),
        ("trace", b"\x1f\x8b", "is cut"),
    ],
)
def test_files_that_are_no_traces(name: str, data: bytes, text: str, tmp_path: Path) -> None:
    """One error says what is wrong with which file."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=text) as caught:
        sc.load(tmp_path / name)
    assert name in str(caught.value)
    done = stepscope("explain", tmp_path / name, cwd=tmp_path)
    assert done.returncode == 1 and name in done.stderr and "Traceback" not in done.stderr


def test_a_trace_without_events(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt.trace.json", [])
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    answer = explain(path)
    assert "no events" in answer.refused and answer.ranks[0].devices == ()
    report_html(path)


@pytest.mark.parametrize("layout", ["kineto", "compact", "compressed"])
def test_a_cut_file_is_read_as_far_as_it_is(layout: str, tmp_path: Path) -> None:
    """And the answer says so."""
    data = LAYOUTS[layout]()
    path = tmp_path / "a.json"
    path.write_bytes(data[: len(data) * 2 // 3])
    answer = explain(path)
    assert answer.ranks[0].devices[0].busy_ns > 1_000_000
    assert "a.json" in answer.trust and re.search("cut|ends inside", answer.trust)
    (rank,) = sc.load(path).ranks
    assert len(rank.steps) and rank.notes and not rank.windows[0].complete


def test_events_that_cannot_be_are_counted(tmp_path: Path) -> None:
    """Times that no clock shows, numbers that no process has, values that are none; the others count."""
    huge = 10**30
    path = tmp_path / "a.json"
    bad: list[Any] = [
        kernel("a", 1e300, 1), kernel("b", 1, -5), kernel("c", 1, 1) | {"tid": huge}, None, 3, [], {"ph": 1},
        span("cpu_op", "d", 9e15, 9e15), step(huge, 0, 1), {"ph": "s", "cat": "ac2g", "ts": 1, "id": "x"},
        kernel("e", 5, 1) | {"args": [1]}, {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Addr": -1}},
        {"ph": "M", "name": "process_labels", "pid": 9, "args": {"labels": [1]}},
    ]  # fmt: skip
    text = json.dumps({"schemaVersion": 1, "traceEvents": [*EVENTS, *bad]})
    text = text[:-2] + ', {"ph": "X", "cat": "kernel", "name": "nan", "ts": 1, "dur": 1, "args": {"a": NaN}}]}'
    path.write_text(text)
    (rank,) = sc.load(path).ranks
    names = rank.names(rank.events()["name"])
    assert names.count("gemm") == 30 and "nan" in names
    assert sum(rank.dropped.values()) == 10
    assert "10 dropped" in explain(path).trust


HOSTILE = "[bold]x[/bold][link=http://x]\x1b[31m\x1b]0;t\x07</script><b>\"'&\u2028\u202e{{7*7}}\\u0000"


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    """In the terminal, on the page and in notebooks, wherever a name may come from."""
    events = [
        event | ({} if event["name"].startswith("ProfilerStep") or event["ph"] == "M" else {"name": HOSTILE})
        for event in EVENTS
    ]
    for event in events:
        if event["name"] == "process_labels" and event["pid"] == 0:
            event["args"] = {"labels": "GPU " + HOSTILE}
    path = save(tmp_path / "[bold]a[red].json", events, host_name=HOSTILE, metadata={HOSTILE: HOSTILE})
    text = shown(path)
    assert "\x1b" not in text.replace("\x1b[0m", "") and "\x07" not in text and "[bold]x[/bold]" in text
    assert "[bold]a[red].json" in text.replace("\n", "")
    done = stepscope("explain", path, cwd=tmp_path)
    assert done.returncode == 0 and "\x1b" not in done.stdout and "[bold]" in done.stdout
    for page in (report_html(path), answer_html(explain(path)), html_of(sc.load(path))):
        outside = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
        assert (
            "<b>" not in outside and "\x1b" not in page and "\u202e" not in page and "7*7" in page or "<b>" not in page
        )
        page.encode()
    assert report_html(path).count("<script") == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(["kineto", "compact", "compressed"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 80), st.binary(max_size=6)), max_size=8
    ),
)
def test_any_bytes_in_a_file(layout: str, changes: list[tuple[float, int, bytes]], tmp_path: Path) -> None:
    """It is read as far as it can be, or refused."""
    data = bytearray(LAYOUTS[layout]())
    for where, removed, added in changes:
        at = int(where * len(data))
        data[at : at + removed] = added
    path = tmp_path / "a.json"
    path.write_bytes(data)
    try:
        answer = explain(path)
    except FormatError as error:
        assert "a.json" in str(error)
    else:
        assert answer.trust and report_html(path)


SAVES = """
import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=25),
    on_trace_ready=lambda done: done.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(26):
        torch.ones(64, 64).mm(torch.ones(64, 64))
        profiler.step()
"""


def test_a_trace_that_torch_saves(tmp_path: Path) -> None:
    """With a schedule: its steps, and operators in them."""
    path = tmp_path / "host.pt.trace.json"
    done = python("-c", SAVES, path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (rank,) = sc.load(path).ranks
    assert len(rank.steps) == 25 and rank.names(rank.events()["name"]).count("aten::mm") == 25
    assert (rank.steps["operators"] > 0).all()
    assert not explain(path).refused
