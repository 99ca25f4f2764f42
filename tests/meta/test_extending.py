"""Authors of an exporter, a backend or a trigger find all names in `stepscope`, and an error that says what is missing."""

from __future__ import annotations

import builtins
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.conformance import check_backend
from stepscope.exporters.conformance import check_exporter
from stepscope.exporters.memory import Method
from stepscope.runtime.events.record import EVENT_DTYPE
from tests.support.basics import ROOT
from tests.support.messages import refused

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


class HalfAnExporter:
    """One that was not finished."""

    name = "half"

    async def open(self, run: sc.exporters.Run) -> None: ...

    async def export(self, batch: sc.exporters.EventBatch) -> None: ...


@pytest.mark.parametrize(
    ("members", "facts"),
    [
        ({"exporters": [HalfAnExporter()]}, ["close_window, aclose", "stepscope.exporters.Exporter"]),
        ({"exporters": [HalfAnExporter]}, ["HalfAnExporter(...)"]),
        (
            {"backends": [HalfAnExporter()]},
            ["thread_bound, transition, aclose, report", "stepscope.backends.Backend"],
        ),
    ],
)
def test_missing_members_are_named(members: dict[str, Any], facts: list[str]) -> None:
    """Method by method, and where the contract is."""
    with refused(TypeError, *facts):
        sc.trace(**members)


@pytest.mark.parametrize(
    ("title", "contract"),
    [
        ("An exporter", sc.exporters.Exporter),
        ("A backend", sc.backends.Backend),
        ("A trigger", sc.triggers.Trigger),
    ],
)
def test_the_page_names_all_that_is_needed(title: str, contract: type) -> None:
    """The page alone suffices to write one."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    members = [name for name in (*contract.__annotations__, *vars(contract)) if not name.startswith("_")]
    named = set(re.findall(r"`(?:async def )?(\w+)", section))
    assert len(members) > 1 and set(members) - {"name"} <= named


async def test_the_suites_name_missing_methods(tmp_path: Path) -> None:
    """As `trace()` does."""
    half: Any = HalfAnExporter
    with refused(AssertionError, "close_window, aclose"):
        await check_exporter(lambda _: half(), tmp_path)
    with refused(AssertionError, "thread_bound, transition, aclose, report", snapshot=False):
        check_backend(half)


@pytest.mark.parametrize(("fails", "errors"), [(("aclose",), "1 error"), (("close_window", "aclose"), "2 errors")])
def test_errors_are_counted_in_words(fails: tuple[Method, ...], errors: str, output_dir: Path) -> None:
    """In what is raised, and in the report."""
    bad = sc.exporters.MemoryExporter(fail={method: RuntimeError("no luck") for method in fails})
    with sc.trace(exporters=[bad], output_dir=output_dir) as profiler:
        profiler.step()
    with refused(ExceptionGroup, errors):
        profiler.raise_errors()
    assert f"{errors}, first RuntimeError: no luck" in str(profiler.report())


def test_names_on_the_page_are_public() -> None:
    """Each contract and type that it describes is public, under the name that it says."""
    (types,) = re.findall(r"The types that appear in them \((.*?)\)", PAGE, re.DOTALL)
    for name in [*re.findall(r"`(\w+)`", types), *re.findall(r"`stepscope\.([A-Z]\w+)`", PAGE)]:
        homes = [
            home
            for home in (sc, sc.backends, sc.exporters, sc.triggers, sc.control, sc.results, sc.errors)
            if name in home.__all__
        ]
        assert homes, name
        assert getattr(homes[0], name).__name__ == name
    for module, names in re.findall(r"^\| `(stepscope[\w.]*)` \| (`.*) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(import_module(module), name) or find_spec(f"{module}.{name}"), (module, name)
    assert all(f"`{column}`" in PAGE for column in EVENT_DTYPE.names or ())


@pytest.mark.parametrize("page", ["extending.md", "extending-reference.md"])
def test_the_errors_that_the_pages_demand_are_public(page: str) -> None:
    """An exporter or backend imports none of them from `stepscope.runtime`, which may change."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+Error)`", text)) - set(vars(builtins)) - {"CancelledError"}
    assert {"OutputError", "ClosedError", "BackendError"} <= named <= set(sc.errors.__all__)
    assert "stepscope.runtime.errors" not in text
