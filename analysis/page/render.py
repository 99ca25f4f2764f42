"""Renders the page, and the parts of it that notebooks show."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stepscope.analysis.explain import judge
from stepscope.analysis.findings import Answer
from stepscope.analysis.page.content import content_of, parts_of_step, parts_table, shortened
from stepscope.analysis.reading.recording import Recording, load
from stepscope.analysis.tables.allocations import human_bytes, memory_text
from stepscope.analysis.tables.devices import idlest, meanwhile_of, use_of
from stepscope.analysis.tables.flops import flops_text, human_flops
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.analysis.terminal import facts_of_steps, shown_rank
from stepscope.runtime.display.text_table import Column, human_count, human_time, printable
from stepscope.runtime.version import VERSION

_DIRECTORY = Path(__file__).parent
_CODE = re.compile("`([^`]+)`")


def report_html(path: str | os.PathLike[str], window: int | None = None, *, peak_flops: float | None = None) -> str:
    """The report of a run as a page that needs no other file and asks nobody for anything.

    Args:
        path: as for `stepscope.load`.
        window: number of the only one that is read and judged; default: all.
        peak_flops: as for `explain`.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        FormatError: if there is no recording, or no such window (`NoWindowError`).
    """
    return page_of(load(path, None if window is None else (window,)), window, peak_flops)[0]


def page_of(recording: Recording, window: int | None, peak_flops: float | None) -> tuple[str, Answer]:
    """The page of a recording, and the answer that is on it. Arguments and errors are those of `report_html`."""
    if window is not None:
        recording.select(window)
    recording.declare_peak(peak_flops)
    summaries = [RankSummary(rank) for rank in recording.ranks]
    answer = judge(recording, summaries)
    return render(content_of(recording, summaries, answer)), answer


def render(content: SimpleNamespace) -> str:
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
    rank = shown_rank(answer)
    found = idlest(answer.ranks)
    return _environment().get_template("notebook.html").render(
        answer=answer,
        caption=facts_of_steps(answer, rank) if rank is not None else "",
        parts=parts_table(parts_of_step(rank)) if rank is not None else None,
        device=found[1] if found is not None else None,
        style=Markup(_file("answer.css")),
    )  # fmt: skip


def tables_html(
    title: str = "",
    facts: Iterable[tuple[str, object]] = (),
    tables: Iterable[tuple[str, Sequence[Column], Iterable[Sequence[str]]]] = (),
    notes: Iterable[str] = (),
) -> str:
    """A part of the page for notebooks: facts with their names, tables with captions, columns and cells, and notes."""
    return _environment().get_template("tables.html").render(
        title=title, facts=list(facts), tables=tables, notes=notes, style=Markup(_file("answer.css"))
    )  # fmt: skip


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
        "bytes": human_bytes,
        "flops": human_flops,
        "flops_text": flops_text,
        "memory_text": memory_text,
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
