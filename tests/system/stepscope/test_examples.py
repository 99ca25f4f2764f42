"""Each example runs as its reader would run it: on its own, in an empty directory, with warnings as errors."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from stepscope.backends.conformance import check_backend
from stepscope.exporters.base import Exporter
from stepscope.exporters.conformance import check_exporter
from tests.support import pftrace
from tests.support.basics import ROOT, missing, require
from tests.support.chrome_traces import events_of, names_of
from tests.support.collectors import Process, free_port, journals, spans
from tests.support.frameworks import check_verdict
from tests.support.launch import run_to_end
from tests.support.receiver import ReceiverThread

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def completed(name: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs an example to its end."""
    # Only ours: what torch warns of is not the example's.
    environment = {**os.environ, "PYTHONWARNINGS": "error:::stepscope,error:::__main__"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


def run(name: str, directory: Path, *arguments: str) -> str:
    """The output of an example."""
    return completed(name, directory, *arguments).stdout


def test_every_example_has_a_test() -> None:
    """An example that nobody runs is out of date sooner or later."""
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES} <= tested | FRAMEWORKS.keys()


def test_every_example_can_be_found() -> None:
    """Readers find it on the page of the examples, to which the README leads."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", page, re.MULTILINE)) == [path.stem for path in EXAMPLES]
    assert "(examples/README.md)" in README


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_needs_of_an_example_are_documented(path: Path) -> None:
    """The extras and packages that it imports, or that an exporter of it needs, and that are not installed with stepscope."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| [{path.name}]"))
    text = path.read_text(encoding="utf-8")
    imports = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    needed = imports & {"accelerate", "keras", "lightning", "torch", "transformers"}
    needed |= {"torch"} if "keras" in needed else set[str]()
    needed |= {name for name in ("collector", "otlp") if f"{name.title()}Exporter(" in text}
    cell, _, more = row.split(" | ")[2].removesuffix(" |").partition("; ")
    assert set(re.findall(r"`(\w+)", cell)) == needed and ("nothing" in cell) is not bool(needed)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"`(\w+)", cell.partition(", and the package")[0] + more)) <= set(extras)


USAGE = "".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("usage", "record-some-steps"))
PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", README + USAGE, re.DOTALL)
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```", README + USAGE, re.DOTALL | re.MULTILINE)


def test_readme_has_no_python_that_is_not_run() -> None:
    """Every block of Python is a program, and marked as one; the others are commands, and lines that are changed."""
    assert [text for language, text in BLOCKS if language == "python"] == PROGRAMS
    assert len(PROGRAMS) == 5
    for language, text in BLOCKS:
        commands = ("make ", "pip install ", "stepscope ", "torchrun ")
        begins = ("-from ", "+from ", "+import stepscope", " import torch") if language == "diff" else commands
        assert language in ("python", "text") or all(line.startswith(begins) for line in text.splitlines())


def test_pages_and_examples_stay_short() -> None:
    """The README is read in minutes and leads to the rest; an example shows one thing on one screen."""
    assert len(README.split()) <= 1_200
    assert [path.name for path in EXAMPLES if len(path.read_text().splitlines()) > 50] == []


def test_lines_that_take_the_place_of_others_work() -> None:
    """The lines that the README would have in a program can be imported, and have the same names as those that they replace."""
    for text in (text for language, text in BLOCKS if language == "diff"):
        removed, added = text.splitlines()
        names: dict[str, Any] = {}
        exec(added.removeprefix("+"), names)
        assert removed.partition(" import ")[2] == added.partition(" import ")[2]
        assert set(added.partition(" import ")[2].split(", ")) <= set(names)


def test_readme_names_every_extra() -> None:
    """And none that there is not; those for working on stepscope itself are its Makefile's affair."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = USAGE.partition("| extra | for |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(extras) - {"bench", "dev", "docs"}


@pytest.mark.parametrize("program", PROGRAMS, ids=["first", "threads", "tasks", "torch", "keep_last"])
def test_readme(program: str, tmp_path: Path) -> None:
    """The README's programs run as they are printed, and are short."""
    assert len(program.splitlines()) <= 25
    if "import torch" in program:
        require("torch")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert b"forward" in done.stdout or b"recorded" in done.stdout
    if "keep_last" in program:
        assert b"saved: slow_step in step" in done.stdout


def test_names_in_the_documents_are_there() -> None:
    """Each name that a page calls as `sc.…` or `stepscope.…` exists; names that Usage calls alone, `sc` has."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"\b(?:sc|stepscope)\.((?:\w+\.)*\w+)\(", text)
        names += re.findall(r"`([A-Z]\w+)\(", text) if page.name == "usage.md" else []
        for name in names:
            try:
                resolve_name(f"stepscope:{name}")
            except AttributeError:
                module = name.partition(".")[0]
                try:
                    importlib.import_module(f"stepscope.{module}")
                except ImportError as error:  # its framework is not installed here
                    assert str(error).startswith(f"stepscope.{module} needs "), error
                else:
                    resolve_name(f"stepscope.{name}")  # of a module that is imported by itself


def test_links_of_the_documents_lead_somewhere() -> None:
    """No page links to one that was renamed."""
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "examples" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
    ]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for picture in re.findall(r'(?:src|srcset)="([^"]*)"', text):
            assert (page.parent / picture).is_file(), f"{page.name} shows {picture}"
        for target, place in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            led = page.parent / target if target else page
            assert led.exists(), f"{page.name} leads to {target}"
            if place:
                headings = re.findall(r"^#+ (.*)", led.read_text(encoding="utf-8"), re.MULTILINE)
                # As GitHub makes them of headings.
                names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert place in names, f"{page.name} leads to {target}#{place}"


def test_quickstart(tmp_path: Path) -> None:
    """Two windows of three steps, in the trace and in the table."""
    output = run("quickstart", tmp_path)
    assert "forward" in output and "dropped   nothing" in output
    steps = {name for name in names_of(tmp_path / "trace.json") if name.startswith("ProfilerStep")}
    assert steps == {f"ProfilerStep#{number}" for number in (4, 5, 6, 9, 10, 11)}


def test_quickstart_async(tmp_path: Path) -> None:
    """Two tasks at a time, in six recorded steps, none of which is cut by the other."""
    output = run("quickstart_async", tmp_path)
    (row,) = (line.split() for line in output.splitlines() if line.startswith("forward"))
    assert row[2] == "12"
    assert sum(drawn.name == "forward" for drawn in pftrace.load(tmp_path / "trace.pftrace").slices()) == 12


def test_stream_to_collector(tmp_path: Path) -> None:
    """The collector has each window when the program ends, and nothing is left on disk for it."""
    port = free_port()
    collector = Process(tmp_path / "collected", port).wait()
    try:
        output = run("stream_to_collector", tmp_path, f"ws://127.0.0.1:{port}")
    finally:
        collector.end()
    assert "frames are with the collector" in output
    assert not (tmp_path / "run" / "unsent").exists()
    (journal,) = journals(tmp_path / "collected")
    assert spans(journal)["forward"] == 25


def test_torch_training(tmp_path: Path) -> None:
    """Operators and steps arrive in the file for TensorBoard."""
    require("torch")
    output = run("torch_training", tmp_path)
    assert "aten::" in output
    (trace,) = (tmp_path / "run" / "tensorboard").glob("*.pt.trace.json")
    assert {"aten::addmm", "forward", "ProfilerStep#8", "ProfilerStep#12"} <= names_of(trace)


def test_torch_profile(tmp_path: Path) -> None:
    """Each window has its table and trace, with what was added before; exports may be repeated."""
    require("torch")
    output = run("torch_profile", tmp_path)
    assert output.count("Self CPU time total") == 3 and "Input Shapes" in output
    for name in ("trace_4.json", "trace_8.json", "again.json"):
        trace = json.loads((tmp_path / name).read_text())
        assert trace["model"] == "two layers"
        assert sum(event["name"] == "forward" for event in trace["traceEvents"]) == 2
    assert json.loads(gzip.decompress((tmp_path / "last.json.gz").read_bytes())) == trace


def test_dataloader_workers(tmp_path: Path) -> None:
    """Both workers are processes of the trace."""
    require("torch")
    output = run("dataloader_workers", tmp_path)
    assert "'DataLoader worker 0': 48" in output and "'DataLoader worker 1': 48" in output
    rows = events_of(tmp_path / "trace.json")
    shown = {event["args"]["name"] for event in rows if event["name"] == "process_name"}
    assert {"DataLoader worker 0", "DataLoader worker 1"} < shown
    assert sum(event["name"] == "read" for event in rows) == 48


def test_callback_export(tmp_path: Path) -> None:
    """The slow window is exported, and that window only is in its file."""
    output = run("callback_export", tmp_path)
    assert "saved slow-1.json.gz" in output
    assert {name for name in names_of(tmp_path / "slow-1.json.gz") if name.startswith("ProfilerStep")} == {
        "ProfilerStep#4",
        "ProfilerStep#5",
    }


def test_simulated_device(tmp_path: Path) -> None:
    """The late device's kernels are in the window that they belong to."""
    output = run("simulated_device", tmp_path)
    (line,) = (line for line in output.splitlines() if line.startswith("simulated:"))
    assert int(line.split()[1]) > 1000
    assert sum(event.get("cat") == "kernel" for event in events_of(tmp_path / "trace.json")) > 300


def test_decorators(tmp_path: Path) -> None:
    """Functions, resumed generators and coroutines are spans; flows and instants are next to them."""
    output = run("decorators", tmp_path)
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line[:1].isalpha() and "  " in line}
    assert rows["parse"][1] == rows["send"][1] == "5"
    assert rows["read"][:2] == ["loading", "6"]  # the last resumption ends the generator
    assert {"row", "a row of zeros"} <= names_of(tmp_path / "trace.json")


def test_own_exporter(tmp_path: Path) -> None:
    """A line for each span of the three steps, below a heading."""
    assert "dropped   nothing" in run("own_exporter", tmp_path)
    with (tmp_path / "spans.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["name"] for row in rows) == sorted(["work", "part"] * 3 + [f"ProfilerStep#{n}" for n in range(3)])
    assert all(int(row["duration_ns"]) > 0 for row in rows)


def test_own_backend(tmp_path: Path) -> None:
    """The memory of the process is a counter of the trace."""
    assert "backend   memory (200 times a second)" in run("own_backend", tmp_path)
    values = [row["args"] for row in events_of(tmp_path / "trace.json") if row["ph"] == "C"]
    assert len(values) > 10
    assert all(value > 1 << 20 for row in values for value in row.values())


def test_own_trigger(tmp_path: Path) -> None:
    """The jump is found, and is why the window was saved."""
    assert "loss went from 1 to 30" in run("own_trigger", tmp_path)
    assert [path.name for path in (tmp_path / "run" / "windows").iterdir()] == ["000000-step40-jump.journal"]


def example(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_own_exporter_keeps_the_contract(tmp_path: Path) -> None:
    """The example's exporter, which users copy, passes the suite."""

    def names(exporter: Exporter, directory: Path) -> list[str]:
        with (directory / "spans.csv").open(newline="", encoding="utf-8") as file:
            return [row["name"] for row in csv.DictReader(file)]

    made = example("own_exporter")
    await check_exporter(lambda directory: made.CsvExporter(directory / "spans.csv"), tmp_path, read_back=names)


def test_own_backend_keeps_the_contract() -> None:
    """Likewise. A reading may be taken before the backend has heard that the window ended."""
    made = example("own_backend")
    check_backend(made.MemoryBackend, exercise=lambda: time.sleep(0.2), tolerance=100_000_000)


def test_flight_recorder(tmp_path: Path) -> None:
    """The slow step and the NaN are found, each with the steps before it."""
    output = run("flight_recorder", tmp_path)
    saved = [line for line in output.splitlines() if line.startswith("saved 0")]
    assert any("-step60-slow_step" in line for line in saved)
    assert any("-step101-not_finite" in line or "-step102-not_finite" in line for line in saved)
    assert "counter 'loss' is " in output


def test_dynamic_window(tmp_path: Path) -> None:
    """Nothing is recorded but what the file asks for; the window is named after its steps."""
    output = run("dynamic_window", tmp_path).splitlines()
    assert len(output) == 2
    name, trigger = output[0].removeprefix("recorded ").split(" asked for by ")
    start, stop = (int(part) for part in name.removeprefix("rank0_start").removesuffix("_look").split("_stop"))
    assert stop == start + 2 and trigger == "file"
    assert output[1] == "recorded 3 steps from the next step on"
    assert (tmp_path / "control" / "stepscope.json.status.json").exists()


def test_otlp(tmp_path: Path) -> None:
    """A receiver gets a trace for each step, the loss and the steps' durations."""
    with ReceiverThread() as server:
        output = run("otlp", tmp_path, server.url)
        assert "accounts  balanced" in output and "dropped   nothing" in output
        steps = {span.name: span.trace_id for span in server.recorded if not span.parent_span_id}
        assert set(steps) == {f"ProfilerStep#{number}" for number in range(5)} and len(set(steps.values())) == 5
        assert server.names()["forward"] == server.names()["load"] == 5
        assert {metric.name for metric in server.metrics} == {"loss", "stepscope.step.duration"}


def test_otlp_without_a_receiver(tmp_path: Path) -> None:
    """One line says at which address nobody was, and what could be there."""
    command = [sys.executable, str(ROOT / "examples" / "otlp.py"), f"http://127.0.0.1:{free_port()}"]
    done = run_to_end(command, cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert last.startswith(command[-1]) and "Connection refused" in last and "Jaeger" in last


def test_accelerate_handler(tmp_path: Path) -> None:
    """Both windows are in Accelerate's file, and the step times at hand; the verdict is logged."""
    check_installed("accelerate")
    done = completed("accelerate_handler", tmp_path)
    assert "'stepscope/steps': 20.0" in done.stdout
    check_verdict(done.stderr, tmp_path / "traces" / "stepscope_runs" / "profile")
    names = names_of(tmp_path / "traces" / "profile_0.json")
    assert {"ProfilerStep#2", "ProfilerStep#23", "micro_step", "loss"} <= names


def check_installed(framework: str) -> None:
    """As `require`, without the seconds that importing a framework takes."""
    if importlib.util.find_spec(framework) is None:
        missing(f"the module {framework}", "`make test` installs it.")


FRAMEWORKS: dict[str, tuple[str, str, set[str]]] = {
    "lightning_callback": ("lightning", "aten::", {"ProfilerStep#2", "ProfilerStep#26", "loss", "micro_step"}),
    "transformers_callback": (
        "transformers",
        r"(?m)^loss +transformers +2 ",
        {"ProfilerStep#2", "ProfilerStep#26", "optimizer_step", "aten::gelu"},
    ),
    "keras_callback": ("keras", "aten::", {"ProfilerStep#4", "ProfilerStep#29", "micro_step"}),
}
"""Examples of callbacks: the framework, what is printed, and events of the only file for TensorBoard."""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework(name: str, tmp_path: Path) -> None:
    """As many updates are recorded as the verdict needs, which is logged."""
    framework, printed, names = FRAMEWORKS[name]
    check_installed(framework)
    done = completed(name, tmp_path)
    assert re.search(printed, done.stdout)
    check_verdict(done.stderr, tmp_path / "run" / "fit")
    (trace,) = (tmp_path / "run" / "fit" / "tensorboard").glob("*.pt.trace.json")
    assert names <= names_of(trace)
    assert (tmp_path / "run" / "fit" / "journal").is_file()


def test_mxnet_objects(tmp_path: Path) -> None:
    """The trace is complete, and the statistics are those of the twenty batches."""
    output = run("mxnet_objects", tmp_path)
    rows = {line[:25].strip(): line[25:].split() for line in output.splitlines() if line[:1].isalpha()}
    assert rows["forward"][0] == rows["batch"][0] == "20"
    assert rows["examples"] == ["21", "6720.0000", "0.0000", "640.0000", "320.0000"]
    assert re.search(r"^the slowest batch: pass \d+: [\d.]+ms(, [\d.]+ passes per second)?$", output, re.MULTILINE)
    found = events_of(tmp_path / "profile.json")
    assert sum(event["name"] == "forward" for event in found) == 20
    assert {"epoch", "paused", "batch per second"} <= names_of(tmp_path / "profile.json")


def test_annotations(tmp_path: Path) -> None:
    """A chosen function is in the trace, with the functions that it calls; others are not."""
    output = run("annotations", tmp_path)
    assert "instrumented: __main__.Tokenizer.split\n" in output
    found = events_of(tmp_path / "trace.json")
    names = names_of(tmp_path / "trace.json")
    assert {"json.dumps", "textwrap.TextWrapper.fill", "encode"} <= names
    assert "json.loads" not in names and "__main__.Tokenizer._clean" not in names
    (outer, later) = (event for event in found if event["name"] == "prepare")
    assert (outer["cat"], outer["args"]["color"]) == ("loading", "green")
    (inner,) = (event for event in found if event["name"] == "__main__.Tokenizer.split")
    assert outer["ts"] <= inner["ts"] <= later["ts"]
