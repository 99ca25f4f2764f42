"""Renders the page."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stepscope.analysis.devices import idlest, meanwhile_of, use_of
from stepscope.analysis.explain import judged, largest
from stepscope.analysis.findings import Answer
from stepscope.analysis.page.content import Content, content_of, parts_table, profiler_facts, shortened, span_tables
from stepscope.analysis.rank_summary import RankSummary
from stepscope.analysis.recording import Recording, load
from stepscope.runtime.reporting import Reporting
from stepscope.runtime.summary import Summary
from stepscope.runtime.table import human_count, human_time, printable
from stepscope.runtime.version import VERSION

_DIRECTORY = Path(__file__).parent
MOST_SHOWN = 10
"""Rows of the table below a profiler, in notebooks."""
_CODE = re.compile("`([^`]+)`")


def report_html(path: str | os.PathLike[str]) -> str:
    """The report of a run as a page that needs no other file and asks nobody for anything.

    Args:
        path: as for `stepscope.load`.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        FormatError: if there is no recording.
    """
    recording = load(path)
    summaries = [RankSummary(rank) for rank in recording.ranks]
    return render(content_of(recording, summaries, judged(recording, summaries)))


def render(content: Content) -> str:
    """The page with this content."""
    script = _file("page.js")
    # The page's policy lets no script in but this one, whatever becomes of a name.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template("template.html").render(
        content=content,
        answer=content.answer,
        version=VERSION,
        digest=digest,
        script=Markup(script),
        style=Markup(_file("answer.css") + _file("page.css")),
    )  # fmt: skip


def answer_html(answer: Answer) -> str:
    """Verdict, findings and phases, for notebooks: styles that touch nothing else, no script."""
    rank = largest(answer.ranks)
    found = idlest(answer.ranks)
    return _environment().get_template("notebook.html").render(
        answer=answer,
        rank=rank,
        parts=parts_table(rank.shares) if rank is not None else None,
        device=found[1] if found is not None else None,
        style=Markup(_file("answer.css")),
    )  # fmt: skip


def recording_html(recording: Recording) -> str:
    """What a recording holds, for notebooks."""
    return _environment().get_template("recording.html").render(
        recording=recording, ranks=recording.ranks, style=Markup(_file("answer.css"))
    )  # fmt: skip


def shown_html(shown: object) -> str:
    """A profiler, its table or its report, for notebooks."""
    content: dict[str, Any] = {"title": "", "facts": (), "tables": (), "notes": ()}
    if isinstance(shown, Reporting):
        table = shown.aggregates()
        content = {
            "title": f"Profiler {shown.name}",
            "facts": [*profiler_facts(shown.statistics()).items(), ("directory", shown.output.path)],
            "tables": span_tables(msgspec.structs.replace(table, rows=table.rows[:MOST_SHOWN])),
            "notes": [
                *shown.diagnostics(),
                "profiler.explain() says what is slow, profiler.report() what was dropped.",
            ],
        }
    elif isinstance(shown, Summary):
        content["tables"] = span_tables(shown)
        content["notes"] = () if shown.rows else ["No spans were recorded."]
    else:
        title, *lines = str(shown).splitlines()
        content |= {"title": title, "facts": [(line[2:12].strip(), line[12:]) for line in lines]}
    return _environment().get_template("shown.html").render(**content, style=Markup(_file("answer.css")))


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_DIRECTORY),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_one_line,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "time": human_time,
        "counted": human_count,
        "code": _with_code,
        "shortened": shortened,
        "use": use_of,
        "meanwhile": meanwhile_of,
    }
    made.filters.update(filters)
    return made


def _one_line(value: Any) -> Any:
    """Texts without controls, marks of direction, and what no file can hold. Markup is not a name."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _with_code(text: str) -> Markup:
    """A sentence of a rule, in which code stands between backticks."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text)))))


@functools.cache
def _file(name: str) -> str:
    return (_DIRECTORY / name).read_text(encoding="utf-8")
