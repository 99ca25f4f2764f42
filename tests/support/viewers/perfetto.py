"""Perfetto's trace processor, as its web page has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.basics import perfetto_ui
from tests.support.viewers.browser import open_page, served

PROBLEMS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
"""Events and problems that the trace processor could not use."""

SLICES = """
select s.name, s.category, s.ts, s.dur, s.depth, t.tid, p.pid, t.name as thread, p.name as process
from slice s left join thread_track tt on s.track_id = tt.id left join thread t using (utid) left join process p using (upid)
order by s.ts, s.id"""

Row = dict[str, Any]

_QUERY = """async (sql) => {
    const result = await window.app.trace.engine.query(sql);
    const columns = result.columns();
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        const value = (name) => { const v = row.get(name); return typeof v === 'bigint' ? v.toString() + 'n' : v; };
        rows.push(Object.fromEntries(columns.map((name) => [name, value(name)])));
    }
    return rows;
}"""


def query(trace: Path, *statements: str, screenshot: Path | None = None) -> list[list[Row]]:
    """Loads a trace file and runs SQL statements over it; the rows of each, integers exact."""
    with served(perfetto_ui(), {"/the-trace": trace}) as address:
        return query_page(f"{address}/#!/?url={address}/the-trace", *statements, screenshot=screenshot)


def query_page(address: str, *statements: str, screenshot: Path | None = None) -> list[list[Row]]:
    """Opens the address of the page with a trace, and runs SQL statements over it; as `query`."""
    with open_page() as page:
        page.goto(address, wait_until="domcontentloaded")
        page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=60_000)
        answers: list[list[Row]] = [page.evaluate(_QUERY, statement) for statement in statements]
        if screenshot is not None:
            page.wait_for_timeout(4000)
            page.screenshot(path=screenshot)
    return [[{key: _exact(value) for key, value in row.items()} for row in rows] for rows in answers]


def _exact(value: Any) -> Any:
    is_big = isinstance(value, str) and value.endswith("n") and value[:-1].lstrip("-").isdigit()
    return int(value[:-1]) if is_big else value
