"""Makes messages.md of the texts in the code. `python -m docs.messages`.

Each text of four words or more that a function builds is a message, or a part of one: of an error, a warning, the report, the
answer, or a command. The texts of `--help` and of the collector's OpenAPI document stand elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tools.package_tree import ROOT, parts

PAGE = Path(__file__).with_name("messages.md")
BEGINNING = """\
# Messages

Errors, warnings, lines of the report and of the answer, as they stand in the code: `make docs` writes this page, and a test
compares it. `…` stands for a value. Search for words of a message; the page that its heading names explains more, and
[When something is missing](troubleshooting.md) says what the commonest ones mean. `NAME must be ..., got TYPE: VALUE` is said of
[settings](settings.md) and other arguments, which msgspec checks.
"""
FEWEST_WORDS = 4
GAP = "…"
PLACES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Starting": {
        "settings.md": ("stepscope", "runtime/settings", "runtime/options", "runtime/memory_limits"),
        "record-some-steps.md": ("runtime/schedule/schedule", "runtime/schedule/plan"),
        "what-it-touches.md": ("runtime/session", "runtime/lifecycle/join"),
        "counters.md": ("backends/counters",),
    },
    "While recording": {
        "control.md": ("runtime/control", "runtime/requests", "runtime/steps", "runtime/flight"),
        "annotations.md": ("runtime/annotations", "runtime/core"),
        "torch.md": ("backends/torch",),
        "collector.md": ("exporters/stream", "exporters/nats"),
        "services.md": ("exporters/otlp",),
        "extending.md": ("backends", "exporters/conformance", "runtime/events", "runtime/export", "runtime/sources"),
        "architecture.md": ("runtime",),
    },
    "At the end": {
        "report.md": (
            "runtime/accounting",
            "runtime/lifecycle",
            "runtime/overhead",
            "runtime/report",
            "runtime/schedule",
        ),
        "explain.md": ("analysis",),
    },
    "Files": {
        "convert-and-view.md": ("exporters",),
        "after-a-crash.md": ("runtime/files", "runtime/recovery"),
        "segment-format.md": ("runtime/journal",),
    },
    "Commands": {"commands.md": ("stepscope/cli", "stepscope/demo")},
    "Collector": {"many-ranks.md": ("collector/merge",), "collector.md": ("collector",)},
    "Coming from another profiler": {
        "torch.md": ("compat/torch", "stepscope/torch"),
        "mindspore.md": ("backends/mindspore", "compat/mindspore", "stepscope/mindspore"),
        "mxnet.md": ("compat/mxnet", "stepscope/mxnet"),
        "frameworks.md": ("compat",),
    },
}
"""Where messages are met, the page about that, and the modules that have them: the longest path that fits decides."""
_NOT_MESSAGES = frozenset(
    "add_argument add_argument_group add_parser ArgumentParser CounterMetricFamily GaugeMetricFamily compile debug get post".split()
)
"""Functions whose texts are no messages: help, descriptions for machines, expressions, details for developers."""
_RAISED = re.compile(r"PyErr_\w+\(PyExc_\w+,([^;]*)")
_C_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*')
_CONSTANTS = frozenset(("DESCRIPTION", "EPILOG", "HELP", "PATH_HELP", "USAGE"))
_WORD = re.compile(r"[^\W\d_]{2}")
_FORMATTED = re.compile(r"%[-+#0]*[\d.*]*(?:l|ll|z)?[sdrfgouxRU]")


def page() -> str:
    """The page as it should be."""
    lines = [BEGINNING]
    found = messages()
    for section, pages in PLACES.items():
        lines += [f"## {section}", ""]
        for name in pages:
            lines += [f"### {section}: [{_title(name)}]({name})", ""]
            lines += (f"- {_code(text)}" for text in sorted(found[section, name], key=_in_order))
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def messages() -> dict[tuple[str, str], set[str]]:
    """Returns the texts by section and page."""
    places = {
        prefix: (section, name)
        for section, pages in PLACES.items()
        for name, prefixes in pages.items()
        for prefix in prefixes
    }
    found: dict[tuple[str, str], set[str]] = {place: set() for place in places.values()}
    for path in sorted((ROOT / "runtime" / "core").rglob("*.c")):
        found[places["runtime/core"]].update(lines_of(texts_in_c(path.read_text(encoding="utf-8"))))
    for part in ("stepscope", *parts()):
        for path in sorted((ROOT / part).rglob("*.py")):
            module = path.relative_to(ROOT).with_suffix("").as_posix()
            fitting = [prefix for prefix in places if f"{module}/".startswith(f"{prefix}/")]
            texts = texts_in_python(ast.parse(path.read_text(encoding="utf-8")))
            found[places[max(fitting, key=len)]].update(lines_of(texts))
    return found


def texts_in_c(source: str) -> Iterator[str]:
    """Yields the texts of the exceptions that a file of the core raises."""
    for arguments in _RAISED.findall(source):
        for text in _C_TEXT.findall(arguments):
            yield "".join(ast.literal_eval(piece) for piece in re.findall(r'"(?:[^"\\]|\\.)*"', text))


def texts_in_python(node: ast.AST) -> Iterator[str]:
    """Yields the texts of a module or a part of one, with `…` for values, without docstrings and help."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id in _CONSTANTS for one in node.targets):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _NOT_MESSAGES:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from texts_in_python(part.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from texts_in_python(child)


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of texts that have enough words."""
    for text in texts:
        for line in _FORMATTED.sub(GAP, text).splitlines():
            line = line.strip(" ,;:·")
            if sum(_WORD.search(word) is not None for word in line.split()) >= FEWEST_WORDS:
                yield line


def _in_order(text: str) -> tuple[str, str]:
    return text.lower(), text


def _title(name: str) -> str:
    return PAGE.with_name(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _code(text: str) -> str:
    """As code, whatever marks of Markdown it has."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
