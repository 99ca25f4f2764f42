"""The report page without a browser: numbers that add up, names that stay text, policy and script that belong together."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

import stepscope as sc
from stepscope.analysis.explain import explain, judge
from stepscope.analysis.findings import Answer, Finding, Place, RankAnswer
from stepscope.analysis.page.content import content_of, parts_table
from stepscope.analysis.page.icicle import icicle_of, kind_of
from stepscope.analysis.page.render import answer_html, report_html
from stepscope.analysis.reading.recording import Recording
from stepscope.analysis.tables.rank_summary import RankSummary, Sample
from stepscope.runtime.display.text_table import percents, printable
from tests.support.basics import html_of

HOSTILE = "</script><b>\"'&\u2028\x00\ud800"


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20).filter(lambda shares: sum(shares) > 0))
def test_percents_add_up(shares: list[float]) -> None:
    """To 100.0 whatever is rounded, none off by more than a digit of the last place."""
    made = percents(shares)
    assert round(sum(made), 6) == 100.0
    assert all(abs(each - 100 * share / sum(shares)) < 0.1 + 1e-6 for each, share in zip(made, shares, strict=True))


def test_parts_of_nothing() -> None:
    assert percents([0.0, 0.0]) == [0.0, 0.0]
    assert parts_table([]) is None
    table = parts_table([("data", 3e6), ("not covered", 1e6)])
    assert table is not None
    assert [row.percent for row in table.rows] == ["75.0 %", "25.0 %"]
    assert (table.total, table.rows[0].colour, table.rows[1].colour) == ("4.00ms", "data", "uncovered")


def sample(stack: str, state: str = "R") -> Sample:
    return Sample(0, stack, state, "")


def test_icicle() -> None:
    """Samples of equal stacks are one node; what launched the program is not shown."""
    launch = "_run_module_as_main (<frozen runpy>:198);<module> (/x/stepscope/__main__.py:9);"
    tree = icicle_of(
        [
            *[sample(f"{launch}<module> (train.py:9);load (train.py:3)", "S")] * 3,
            sample(f"{launch}<module> (train.py:9);load (train.py:4)"),
            *[sample("<module> (train.py:9);forward (site-packages/torch/nn/linear.py:7)")] * 2,
            sample(""),
        ],
        100,
    )
    assert tree is not None
    assert [tree.names[each] for each in tree.name] == ["all samples", "<module>", "load", "forward"]
    assert (tree.depth, tree.samples, tree.waiting) == ((0, 1, 2, 2), (6, 6, 4, 2), (3, 3, 3, 0))
    assert tree.places[tree.name[2]] == "train.py:3", "the line of most samples"
    assert [tree.kinds[each] for each in tree.name[1:]] == [0, 0, 1]
    assert kind_of("/usr/lib/python3.11/json/decoder.py") == 2
    assert icicle_of([], 100) is None


def test_an_icicle_is_bounded() -> None:
    """The widest frames stay; a stack as deep as any is no recursion."""
    stacks = [
        sample(f"main (a.py:1);f{number} (a.py:{number})") for number in range(500) for _ in range(1 + (number < 10))
    ]
    tree = icicle_of(stacks, 100)
    assert tree is not None
    assert len(tree.name) == 12 and tree.left_out == 490
    deep = icicle_of([sample(";".join(f"f{number} (a.py:1)" for number in range(5_000)))], 10_000)
    assert deep is not None and deep.depth[-1] == 5_000


def answer(text: str) -> Answer:
    finding = Finding(
        id="input-bound", title=text, cost=0.5, cost_ns=1e6, evidence=(text, "with `code`"), action=text, gain=text,
        steps=(1, 2), ranks=(0,), places=(Place(text, text, 3, 0.9),),
    )  # fmt: skip
    rank = RankAnswer(rank=0, name=text, statistics=None, shares=())
    return Answer(path=text, verdict=text, findings=(finding, finding), ranks=(rank,), unknown=(text,), trust=text)


def test_an_answer_in_a_notebook() -> None:
    """Names are text, styles touch nothing else, nothing is run."""
    html = html_of(answer(HOSTILE))
    assert "<b>" not in html and "<script" not in html and "\x00" not in html and "\u2028" not in html
    assert "&lt;/script&gt;&lt;b&gt;" in html and "<code>code</code>" in html
    html.encode()
    style = re.sub(r"@media[^{]*{", "", html[html.index("<style>") + 7 : html.index("</style>")])
    style = re.sub(r":is\((?:[^()]|\([^()]*\))*\)", "", style)
    selectors = [one.strip() for rule in re.findall(r"(?:^|})\s*([^{}@]+){", style) for one in rule.split(",")]
    assert len(selectors) > 50 and all(one.startswith(".stepscope") for one in selectors), selectors
    refused = Answer(path="x", verdict="Not enough.", refused="Call `step()`.")
    assert "<code>step()</code>" in answer_html(refused)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    with sc.trace(name=HOSTILE, output_dir=directory, metadata={"command": ["a b", HOSTILE]}) as profiler:
        for _ in range(40):
            with sc.span("load", category="data"):
                sum(range(100_000))
            with sc.span(HOSTILE):
                sum(range(1_000))
            profiler.step()
    return directory


def test_the_page(run: Path) -> None:
    """One script that its policy lets in, data that are JSON, the verdict and every part."""
    html = report_html(run)
    html.encode()
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="data"', ""]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert set(re.findall(r'(?:src|href|action)="([^"]*)"', html)) == {"data:,", "#answer"}
    assert "url(" not in html and "@import" not in html
    (data,) = json.loads(scripts[0][1])
    chart = data["chart"]
    assert len(chart["first"]) == 40 and chart["first"] == chart["last"]
    assert [chart["names"][0], chart["names"][-1]] == ["data", "not covered"]
    for index, longest in enumerate(chart["longest"]):
        assert sum(part[index] for part in chart["ns"]) == pytest.approx(longest, rel=1e-3)
    found = explain(run)
    assert str(escape(printable(found.verdict))) in html
    assert "'a b' " in html.replace("&#39;", "'"), "the command as it is typed"


def test_the_run_and_the_process_that_is_shown(run: Path) -> None:
    """The page says what was recorded, and opens with the rank that the verdict names."""
    recording = sc.load(run)
    (summary,) = map(RankSummary, recording.ranks)
    summary.samples = [sample("")]
    facts = dict(content_of(recording, [summary], explain(recording)).facts)
    assert facts["steps recorded"] == "0 to 39" and facts["exporters"] == "journal" and "backends" not in facts
    ranks = [sc.load(run).ranks[0] for _ in range(3)]
    for number, rank in enumerate(ranks):
        rank.rank = number
    summaries = list(map(RankSummary, ranks))
    found = judge(Recording(run, ranks, []), summaries)
    named = msgspec.structs.replace(answer("x").findings[0], ranks=(2,))
    found = msgspec.structs.replace(found, findings=(named, *found.findings))
    processes = content_of(Recording(run, ranks, []), summaries, found).processes
    assert [process.answer.rank for process in processes] == [2, 0, 1]


@pytest.mark.checklist("D13", "D18")
def test_the_data_pipeline_and_the_layout(run: Path, tmp_path: Path) -> None:
    """Sections of a recording that has them, with the bottleneck first; names are text. Others have none."""
    operators: list[dict[str, Any]] = [
        {"id": 0, "type": "EpochCtrl", "workers": 1, "children": [1], "capacity": 0},
        {"id": 1, "type": "<b>Map", "workers": 3, "children": [2], "capacity": 16},
        {"id": 2, "type": "Generator", "workers": 2, "children": [], "capacity": 16},
    ]
    groups = [{"name": f"tp{first}", "kind": "tensor", "ranks": [first, first + 1]} for first in (0, 2)]
    layout = {"sizes": {"dp": 2, "tp": 2}, "sharding": {"embedding": "rows", "mesh": [2, 2]}}
    for rank, group in enumerate(groups):
        metadata = {"parallel_layout": layout | {"groups": [group]}}
        with sc.trace(output_dir=tmp_path, rank=rank, world_size=4, metadata=metadata) as profiler:
            description = {"source": "MindSpore", "interval_ms": 100, "operators": operators}
            sc.instant("data pipeline", category="data pipeline", **description)
            for _ in range(3):
                for name, value in (
                    ("<b>Map(id=1) queue", 0),
                    ("Generator(id=2) queue", 16),
                    ("<b>Map(id=1) processor", 60),
                    ("batch waited for (ms)", 2.0),
                ):
                    sc.counter(name, value, category="data pipeline")
                profiler.step()
    html = report_html(tmp_path)
    assert "Data pipeline of MindSpore</h2>" in html and "&lt;b&gt;Map(id=1)" in html and "<b>Map" not in html
    section = html[html.index("Data pipeline of") : html.index("nearest to the training loop")]
    assert "it is slower than Generator(id=2). Try num_parallel_workers above 3 for" in section
    assert section.index("is slower than") < section.index("<table") and ">20 %</td>" in section
    shown = html[html.index("Parallel layout</h2>") :]
    assert "data 2 × tensor 2" in shown and "embedding: rows, mesh: [2, 2]" in shown
    assert all(f"{group}</th><td>tensor</td>" in shown for group in ("tp0", "tp2")), "the groups of both ranks"
    text = " ".join(str(explain(tmp_path)).split())
    assert "Sharding embedding: rows, mesh: [2, 2]" in text
    without = report_html(run)
    assert (
        "Data pipeline of" not in without and "Parallel layout" not in without and "Sharding" not in str(explain(run))
    )
