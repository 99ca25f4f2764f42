"""`stepscope run`: the program does not notice, and its steps are found."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from stepscope.analysis.reading.recording import load
from stepscope.analysis.terminal import MOST_LINES
from stepscope.backends.torch.arm import VARIABLE
from stepscope.cli.programs.torch_program import OptimizerSteps
from stepscope.runtime._core import ITT_UNRECORDED
from stepscope.runtime.events import strings
from tests.support.basics import require
from tests.support.chrome_traces import events_of
from tests.support.collectors import collecting, journals, spans
from tests.support.commands import on_terminal, python, stepscope
from tests.support.launch import launched
from tests.support.messages import check_messages

TRAINING = """
import torch
from torch import nn
network = nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(12):
    loss = network(torch.rand(8, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def complete(path: Path, name: str) -> list[tuple[float, float]]:
    """Begin and end of the complete events whose name begins with this, in order."""
    return sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events_of(path) if e["ph"] == "X" and e["name"].startswith(name)
    )


def of_program(errors: str) -> str:
    """Standard error without the one line that `--quiet` leaves: where the trace is."""
    (line,) = [line for line in errors.splitlines(keepends=True) if line.startswith("see it ")]
    return errors.replace(line, "")


def traced(
    directory: Path, program: str, *options: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Traces a program, `p.py`, into `run`; both are in the directory."""
    (directory / "p.py").write_text(program)
    return stepscope("run", *options, "--out", "run", "p.py", cwd=directory, env=env)


def same_as_plain(cwd: Path, *words: object) -> None:
    """Fails unless a program has the exit code, output and errors that Python gives it."""
    plain, done = python(*words, cwd=cwd), stepscope("run", "--quiet", "--out", "run", *words, cwd=cwd)
    assert (done.returncode, done.stdout, of_program(done.stderr)) == (plain.returncode, plain.stdout, plain.stderr)


# the program


PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, __file__, __spec__, sys.path[0])",
    "names": "print(sorted(globals()), type(__builtins__), __cached__, __loader__.path, __annotations__)",
    "code": "import sys; sys.exit(3)",
    "negative code": "import sys; sys.exit(-1)",
    "message": "import sys; sys.exit('it did not work')",
    "no code": "import sys; print('so far'); sys.exit()",
    "error": "def f():\n    raise ValueError('mine')\ntry:\n    f()\nexcept ValueError as e:\n    raise KeyError('too') from e",
    "hook": "import sys; sys.excepthook = lambda *a: print('hooked', a[0].__name__); 1 / 0",
    "syntax": "def f(:\n    pass",
    "imports": "import neighbour; print(neighbour.__file__)",
    "exit hook": "import atexit; atexit.register(print, 'at exit')",
    "closed output": "import sys; print('last words', flush=True); sys.stdout.close()",
    "pickled": "import pickle\nclass C: pass\nprint(type(pickle.loads(pickle.dumps(C()))) is C)",
    "children": (
        "import multiprocessing as m\ndef twice(x): return 2 * x\nif __name__ == '__main__':\n"
        "    for how in 'spawn', 'fork':\n        with m.get_context(how).Pool(1) as p: print(p.map(twice, [1, 2]))"
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_without_us(name: str, tmp_path: Path) -> None:
    """Exit code, output and errors are those that Python gives; what the program sees of itself, too."""
    script = tmp_path / "scripts" / "program.py"
    script.parent.mkdir()
    script.write_text(PROGRAMS[name])
    (script.parent / "neighbour.py").touch()
    same_as_plain(tmp_path, script, "a", "--wait", "--", "-h")


@pytest.mark.parametrize("typed", ["program.py", "./program.py", "../here/program.py"])
def test_a_relative_path_is_shown_as_without_us(typed: str, tmp_path: Path) -> None:
    """The script's file name, its own and in tracebacks, is the one that Python gives; at exit it is still there."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "program.py").write_text(
        "import atexit, sys\nmine = 1\nprint(sys.argv, __file__)\n"
        "atexit.register(lambda: print(sys.modules['__main__'].mine))\n1 / 0"
    )
    same_as_plain(here, typed)


@pytest.mark.parametrize("module", ["package", "package.part"])
def test_a_module_runs_as_without_us(module: str, tmp_path: Path) -> None:
    """`-m` finds modules as Python does, and gives them the same view of themselves."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("__main__", "part"):
        (package / f"{name}.py").write_text(
            "import sys; print(sys.argv, __name__, __spec__.name, __package__, sys.path[0])"
        )
    same_as_plain(tmp_path, "-m", module, "-x")


def test_a_directory_runs(tmp_path: Path) -> None:
    """A directory with `__main__.py` is a program, too."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import neighbour; print(__name__)")
    (tmp_path / "app" / "neighbour.py").touch()
    done = stepscope("run", "--quiet", "--out", "run", "app", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__\n"), done.stderr


def test_an_interrupted_program_is_written(tmp_path: Path) -> None:
    """Ctrl-C ends the program; what was recorded is on disk."""
    done = traced(
        tmp_path, "import os, signal, stepscope as sc\nwith sc.span('work'): os.kill(os.getpid(), signal.SIGINT)"
    )
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr and "Trust  " in done.stderr
    assert complete(tmp_path / "run" / "trace.json", "work")


TERMINATED = """
import stepscope as sc, threading
with sc.span("work"):
    pass
print("ready", flush=True)
threading.Event().wait()
"""
"""Another process ends it."""


def terminated(directory: Path, *options: str, full: bool = False) -> tuple[int, str]:
    """The end of a program that is terminated when it writes that it is ready: its status, and its standard error.

    Args:
        directory: where it runs.
        options: those of `stepscope run`.
        full: whether standard error takes nothing any more.
    """
    (directory / "p.py").write_text(TERMINATED)
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while full:
                os.write(write, bytes(1 << 12))
        os.set_blocking(write, True)
        command = [sys.executable, "-m", "stepscope", "run", "--out", "run", *options, "p.py"]
        with launched(command, cwd=directory, stdout=subprocess.PIPE, stderr=write, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            code = process.wait(60)
        os.close(write)
        write = -1
        with open(read, closefd=False) as errors:
            return code, errors.read()
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def test_a_terminated_program_says_where_its_files_are(tmp_path: Path) -> None:
    """Nobody calls what follows the program then; the line comes all the same, with what opens the files."""
    code, errors = terminated(tmp_path)
    assert code == -signal.SIGTERM
    first, *rest = errors.splitlines()
    assert first == "stepscope run: SIGTERM ended the program; what was recorded is in run"
    assert any(line.startswith("  See it ") and "run/trace.json" in line for line in rest), errors
    assert any(line.startswith("  Trust ") for line in rest) and len(rest) <= MOST_LINES, errors
    assert [begin for begin, _ in complete(tmp_path / "run" / "trace.json", "work")]


def test_a_terminated_program_is_quiet_if_asked(tmp_path: Path) -> None:
    """As at a normal end."""
    assert terminated(tmp_path, "--quiet") == (-signal.SIGTERM, "")


def test_a_terminated_program_waits_for_no_reader(tmp_path: Path) -> None:
    """Where standard error takes nothing, the process ends without a line, long before the deadline for closing."""
    code, errors = terminated(tmp_path, full=True)
    assert code == -signal.SIGTERM and not errors.strip("\0")
    assert [begin for begin, _ in complete(tmp_path / "run" / "trace.json", "work")]


FORKED = """
import os, signal, stepscope as sc, sys
if (child := os.fork()) == 0:
    with sc.trace(output_dir="child"):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
_, status = os.waitpid(child, 0)
sys.exit(0 if os.WTERMSIG(status) == signal.SIGTERM else 1)
"""


def test_a_forked_child_that_is_terminated_says_nothing_of_its_parent(tmp_path: Path) -> None:
    """Also if it traces: the program goes on."""
    done = traced(tmp_path, FORKED)
    assert done.returncode == 0, done.stderr
    assert "ended the program" not in done.stderr and "Trust  " in done.stderr
    assert (tmp_path / "child" / "journal").exists()


def test_a_forked_child_reports_nothing(tmp_path: Path) -> None:
    """A child that runs to the program's end is not a second traced program."""
    done = traced(tmp_path, "import os\nif os.fork(): os.wait()\nprint('end', flush=True)")
    assert (done.returncode, done.stdout) == (0, "end\nend\n")
    assert done.stderr.count("Trust  ") == 1


# its output


@pytest.mark.parametrize(
    "end", ["raise ValueError('mine')", "sys.exit(1)", "os.kill(os.getpid(), signal.SIGINT)", "pass"]
)
def test_the_end_is_short(end: str, tmp_path: Path) -> None:
    """At most 15 lines of 80 columns have the verdict, the parts of a step, where the files are and trust; an error follows. Step 0 is startup."""
    require("torch")
    done = traced(tmp_path, f"import os, signal, sys\n{TRAINING.replace('12', '30')}{end}\n", env={"COLUMNS": "80"})
    answer, _, error = done.stderr.partition("Traceback")
    lines = answer.splitlines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= 80, answer
    assert "29 steps, 24 judged" in answer and "█" in answer and "view run/trace.json" in answer and "Trust " in answer
    assert "stepscope report run" in " ".join(answer.split()) and bool(error) is (
        "pass" not in end and "exit" not in end
    )


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import torch_that_is_not_there", "No module named 'torch_that_is_not_there'. The program ran with "),
        ("raise ValueError('mine')", "ValueError: mine"),
        ("raise SystemExit(3)", "exited with status 3"),
    ],
)
def test_a_failure_before_the_first_step_is_reported(program: str, why: str, tmp_path: Path) -> None:
    """No advice on steps: the program never came to them."""
    done = traced(tmp_path, program)
    answer = done.stderr.partition("Traceback")[0]
    assert "The program failed before its first step." in answer and why in " ".join(answer.split()), answer
    assert "Steps are missing" not in answer and done.returncode in (1, 3)


def test_files_are_named_as_the_shell_finds_them(tmp_path: Path) -> None:
    """Also where the program works in another directory."""
    program = "import os, time, stepscope as sc\nos.chdir('/usr')\nwith sc.span('work'): time.sleep(0.001)"
    (tmp_path / "program.py").write_text(program)
    done = stepscope("run", "--no-torch", "--out", "run", "program.py", cwd=tmp_path)
    assert " view run/trace.json" in done.stderr and " report run\n" in done.stderr, done.stderr


def test_the_last_steps_are_shown_where_they_are(tmp_path: Path) -> None:
    """With `--keep-last` each window has a trace: the last one is named, not the pattern; and the journals are."""
    done = traced(
        tmp_path, "import stepscope as sc\nwith sc.span('work'): raise ValueError('mine')", "--report", "--keep-last", 3
    )
    assert "view run/trace-0.json, or drag it into https://ui.perfetto.dev" in done.stderr
    (path,) = (tmp_path / "run" / "windows").iterdir()
    assert f"saved     windows/{path.name}" in done.stderr
    assert complete(tmp_path / "run" / "trace-0.json", "work")


def test_without_a_window_the_answer_is_why(tmp_path: Path) -> None:
    """No trigger fired, or the program was shorter than the schedule: there is no run to look at."""
    done = traced(tmp_path, "pass", "--keep-last", 3)
    assert "No answer  nothing saved: of slow_step" in done.stderr and "See it" not in done.stderr
    done = traced(tmp_path, "pass", "--wait", 5, "--active", 3)
    assert "No answer  never stepped" in done.stderr and "See it" not in done.stderr


def test_the_answer_is_json(tmp_path: Path) -> None:
    """That of `stepscope explain`, below what the program prints; the rest is on standard error."""
    done = traced(tmp_path, "import stepscope as sc\nwith sc.span('work'): print('of the program')", "--json")
    first, _, rest = done.stdout.partition("\n")
    assert (done.returncode, first) == (0, "of the program"), done.stderr
    explained = stepscope("explain", "run", "--json", cwd=tmp_path)
    assert {**json.loads(rest), "path": "run"} == json.loads(explained.stdout)
    assert "run/trace.json" in done.stderr and "Trust" not in done.stderr


def test_json_goes_where_the_command_writes(tmp_path: Path) -> None:
    """A program that replaces `sys.stdout` does not get it."""
    done = traced(tmp_path, "import sys\nsys.stdout = open('mine', 'w')\nprint('of the program')", "--json")
    assert json.loads(done.stdout)["path"] and (tmp_path / "mine").read_text() == "of the program\n", done.stderr


def test_an_answer_that_nobody_takes_changes_no_exit_code(tmp_path: Path) -> None:
    """The program has closed standard output."""
    done = traced(tmp_path, "import sys\nsys.stdout.close()\nsys.exit(3)", "--json")
    assert done.returncode == 3
    check_messages(done.stderr.splitlines()[-1], "standard output")


def test_exporters_are_chosen(tmp_path: Path) -> None:
    """Several at once; the journal is written in any case."""
    (tmp_path / "p.py").write_text("import stepscope as sc\nwith sc.span('work'): pass")
    arguments = ("--exporter", "tensorboard", "--exporter", "console", "--out", "run")
    done = stepscope("run", *arguments, "p.py", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["journal", "tensorboard"]
    assert "p: window 0 ended" in done.stderr
    assert "--logdir run/tensorboard" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing.py",), 2, "there is no file missing.py"),
        (("q.py",), 2, "did you mean p.py?"),
        (("folder",), 2, "folder is a directory without __main__.py"),
        (("-m", "missing.part"), 2, "there is no module missing"),
        (("--out", "p.py", "p.py"), 2, "--out p.py is a file; name a directory"),
        (("--wait", "1", "p.py"), 2, "--active is missing"),
        (
            ("--mode", "stream", "--with-stack", "p.py"),
            2,
            "--with-stack cannot be had with --mode stream: use --mode kineto",
        ),
        (("--out", "p.py/run", "p.py"), 1, "cannot write the run to p.py/run"),
        (("--backend", "host", "--record-shapes", "p.py"), 2, "add --backend torch"),
        (("--no-torch", "--mode", "kineto", "p.py"), 2, "leave out --no-torch"),
        (("--no-torch", "--backend", "torch", "p.py"), 2, "--no-torch leaves out what --backend torch"),
        (("--keep-last", "3", "--control", "p.py"), 2, "--keep-last records all steps"),
        (("--keep-last", "3", "--active", "3", "p.py"), 2, "--keep-last records all steps"),
        (("--keep-last", "3", "--skip-first-wait", "p.py"), 2, "--keep-last records all steps"),
    ],
)
def test_a_program_is_not_begun_in_vain(arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    """An option that cannot work is refused before the program runs."""
    (tmp_path / "p.py").write_text("print('it ran')")
    (tmp_path / "folder").mkdir()
    done = stepscope("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert not (tmp_path / "stepscope_runs").exists()
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_program_that_records_nothing_gets_advice(tmp_path: Path) -> None:
    """Behind the report, which says that its window is empty; of one that failed, the error says enough."""
    for program, has_hint in (("pass", True), ("1 / 0", False), ("import stepscope; stepscope.instant('x')", False)):
        (tmp_path / "p.py").write_text(program)
        done = stepscope("run", "--out", "run", "p.py", cwd=tmp_path)
        assert ("imports no torch, and records nothing itself: add stepscope.span()" in done.stderr) is has_hint, (
            program
        )


def test_a_module_that_is_not_in_its_package_is_one_line(tmp_path: Path) -> None:
    """As Python says it; the package runs before anybody can know."""
    done = stepscope("run", "--quiet", "--out", "run", "-m", "json.missing", cwd=tmp_path)
    assert (done.returncode, of_program(done.stderr)) == (1, "stepscope run: No module named json.missing\n")


# torch


@pytest.mark.parametrize("mode", ["stream", "kineto"])
def test_steps_of_the_optimizer_are_steps(mode: str, tmp_path: Path) -> None:
    """An unchanged training script: the schedule's steps, each with its operators and its optimizer's step inside."""
    require("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    schedule = ("--skip-first", 2, "--wait", 1, "--warmup", 1, "--active", 2, "--repeat", 2)
    done = stepscope("run", "--report", "--mode", mode, *schedule, "--out", "run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "closed, 12 steps, 2 windows" in done.stderr
    assert f"backend   torch ({mode})" in done.stderr
    trace = tmp_path / "run" / "trace.json"
    steps = {
        e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events_of(trace) if e["name"].startswith("ProfilerStep#")
    }
    assert sorted(steps, key=lambda name: steps[name]) == [f"ProfilerStep#{n}" for n in (4, 5, 8, 9)]
    inside = zip(sorted(steps.values()), complete(trace, "Optimizer.step#SGD.step"), strict=True)
    assert all(begin <= first and last <= end for (begin, end), (first, last) in inside)
    assert len(complete(trace, "aten::addmm")) == 4


def test_torch_may_be_imported_before_the_program(tmp_path: Path) -> None:
    """As the environment's `sitecustomize` may do it: torch's own engine records the same, and the log says it once."""
    require("torch")
    (tmp_path / "sitecustomize.py").write_text("import torch")
    done = traced(tmp_path, TRAINING, env={"PYTHONPATH": str(tmp_path), VARIABLE: ""})
    assert (done.returncode, done.stderr.count("torch was imported before stepscope")) == (0, 1), done.stderr
    assert "No answer" not in done.stderr and "start the script by" not in done.stderr
    assert len(complete(tmp_path / "run" / "trace.json", "aten::addmm")) == 12


def test_a_whole_program_is_one_window(tmp_path: Path) -> None:
    """Without a schedule everything is recorded, from the import of torch on."""
    require("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    done = stepscope("run", "--report", "--out", "run", "--mode", "stream", "train.py", cwd=tmp_path)
    assert "closed, 12 steps, 1 window" in done.stderr
    assert len(complete(tmp_path / "run" / "trace.json", "aten::addmm")) == 12
    # Until the first step of the optimizer it is startup.
    assert "11 steps: mean " in done.stderr
    (rank,) = load(tmp_path / "run").ranks
    assert rank.steps["step"].tolist() == list(range(1, 12)) and rank.startup_ns > rank.shutdown_ns
    assert "Step 0 is startup" in stepscope("windows", "run", cwd=tmp_path).stdout
    assert not complete(tmp_path / "run" / "trace.json", ITT_UNRECORDED), (
        "what showed that operators arrive is in the trace"
    )
    assert stepscope("analyse", "run", cwd=tmp_path).returncode == 0
    table = (tmp_path / "run" / "ASCEND_PROFILER_OUTPUT" / "step_phases.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in table[1:]] == [*map(str, range(1, 12)), "median", "average", "percent"]


def test_steps_without_operators(tmp_path: Path) -> None:
    """`--no-torch` leaves the operators out; steps are still found. `--step-on none` does not look for them."""
    require("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    for options, steps in ((("--no-torch",), 12), (("--no-torch", "--step-on", "none"), 0)):
        done = stepscope("run", "--report", *options, "--out", "run", "train.py", cwd=tmp_path)
        assert f"closed, {steps} steps" in done.stderr
        assert not complete(tmp_path / "run" / "trace.json", "aten::")


def test_a_broken_torch_breaks_nothing_else(tmp_path: Path) -> None:
    """A fault in our part of `import torch` is reported, and stays out of the program."""
    (tmp_path / "torch.py").write_text(
        "import builtins\nif not hasattr(builtins, 'again'):\n    builtins.again = 1\n    raise ImportError('first try')"
    )
    done = traced(
        tmp_path,
        "try: import torch\nexcept ImportError as e: print(e)\nimport torch; print(torch.__name__)",
        "--report",
    )
    assert (done.returncode, done.stdout) == (0, "first try\ntorch\n"), done.stderr
    assert "No steps  ModuleNotFoundError" in done.stderr
    assert "note      torch: " in done.stderr


@contextlib.contextmanager
def counted_steps() -> Generator[list[int]]:
    """The steps that are found in the block: an item each."""
    steps_made: list[int] = []
    steps = OptimizerSteps(lambda: steps_made.append(1))
    steps.attach()
    try:
        yield steps_made
    finally:
        steps.detach()


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("aaaa", 4),
        ("abababab", 4),  # two optimizers that take turns
        ("aaabaaabaaab", 9),  # one that steps more often
        ("abbbabbb", 6),  # the one that steps more often is not the first: it takes over
        ("aabbbb", 5),  # another phase of the training, with the first optimizer still there
        ("aabcbcbc", 4),
    ],
)
def test_several_optimizers(turns: str, expected: int) -> None:
    """An iteration is one step, however many optimizers step in it."""
    torch: Any = require("torch")
    optimizers = {name: torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for name in "abc"}
    with counted_steps() as steps_made:
        for turn in turns:
            optimizers[turn].step()
    optimizers["a"].step()
    assert len(steps_made) == expected


def test_an_optimizer_that_extends_another_steps_once() -> None:
    """A step that calls the step of its base class is one step."""
    torch: Any = require("torch")

    class Mine(torch.optim.SGD):  # type: ignore[misc, name-defined, unused-ignore]
        def step(self, closure: Any = None) -> Any:
            base: Any = super()
            return base.step(closure)

    with counted_steps() as steps_made:
        base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        mine = Mine([torch.zeros(1, requires_grad=True)], lr=0.1)
        for _ in range(3):
            mine.step()
        del base
    assert len(steps_made) == 3


def test_torch_is_not_imported_for_programs_without_it(tmp_path: Path) -> None:
    """A small script is not made to wait for torch."""
    done = traced(tmp_path, "import sys; print('torch' in sys.modules)", "--quiet")
    assert done.stdout == "False\n"


# options of the recording

WHILE_IT_RECORDS = """
import sys, time
import stepscope as sc
from stepscope.runtime._core import recording
step = sys.modules["torch.optim.optimizer"].step if "torch" in sys.modules else lambda: None
while recording():
    with sc.span("during"):
        time.sleep(0.01)
    step()
step()
with sc.span("after"):
    print("goes on")
"""
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
    return type("Handle", (), {"remove": lambda self: hooks.remove(hook)})()
class Optimizer:
    param_groups = []
optimizer = Optimizer()
def step():
    for hook in hooks:
        hook(optimizer, (), {})
"""
"""The part of torch that steps are found by."""


def test_backends_by_name(tmp_path: Path) -> None:
    """Those that are named record, and torch only if it is among them; one that has nothing to read costs nothing else."""
    (tmp_path / "p.py").write_text("import time, stepscope as sc\nwith sc.span('work'): time.sleep(0.3)")
    named = [word for name in ("host", "memory", "nvml", "perf", "python") for word in ("--backend", name)]
    done = stepscope("run", "--report", *named, "--out", "run", "p.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (rank,) = load(tmp_path / "run").ranks
    names = {strings.name_of(event) for batch in rank.batches() for event in batch.events}
    assert {"work", "host cpu %", "process allocated"} < names and any(name.startswith("<module>") for name in names)
    assert "backend   host" in done.stderr and "torch" not in done.stderr
    done = stepscope("run", "--report", "--backend", "host", "--backend", "torch", "--out", "run", "p.py", cwd=tmp_path)
    assert "the program did not import torch" in done.stderr


IN_PARALLEL = """
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
torch.distributed.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
for _ in range(2):
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def test_the_parallel_layout_is_found(tmp_path: Path) -> None:
    """Groups that are made after the start, and are gone at the end."""
    require("torch")
    done = traced(tmp_path, IN_PARALLEL, "--quiet")
    assert done.returncode == 0, done.stderr
    (rank,) = load(tmp_path / "run").ranks
    assert rank.metadata["parallel_layout"]["sizes"] == {"pipeline": 2, "data": 2, "tensor": 2}


def test_a_duration_without_steps(tmp_path: Path) -> None:
    """Recording ends when the time is over, and the program goes on."""
    done = traced(tmp_path, WHILE_IT_RECORDS, "--no-torch", "--duration", "0.5")
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    check_messages(done.stderr.splitlines()[0], "0.5 s", "run")
    trace = tmp_path / "run" / "trace.json"
    assert complete(trace, "during") and not complete(trace, "after")


def test_a_duration_ends_torchs_recording(tmp_path: Path) -> None:
    """Also where no step ends: torch is stopped on the program's thread, which it recorded."""
    require("torch")
    (tmp_path / "p.py").write_text(
        """
import torch
from stepscope.runtime._core import recording
NONE = torch._C._autograd._profiler_type().NONE
while recording() or torch._C._autograd._profiler_type() != NONE:
    torch.ones(2).tanh()
print("goes on")
"""
    )
    done = stepscope("run", "--duration", "8", "--out", "run", "p.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def test_a_duration_with_steps(tmp_path: Path) -> None:
    """The window ends with a step, and is complete; steps go on, and are not recorded."""
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "train.py").write_text(f"from torch.optim import optimizer\n{WHILE_IT_RECORDS}")
    done = stepscope("run", "--no-torch", "--duration", "1", "-o", "run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "goes on\n") and "ignored" not in done.stderr, done.stderr
    (rank,) = load(tmp_path / "run").ranks
    (window,) = rank.windows.values()
    assert window.complete and len(window.steps) > 1 and not complete(tmp_path / "run" / "trace.json", "after")


def test_windows_are_asked_for(tmp_path: Path) -> None:
    """With `--control` nothing is recorded until `stepscope arm` asks; the line on standard error has the command."""
    require("torch")
    (tmp_path / "train.py").write_text(
        TRAINING.replace("for _ in range(12):", "import os\nwhile not os.path.exists('end'):")
    )
    command = [sys.executable, "-m", "stepscope", "run", "--control", "--out", "run", "train.py"]
    with launched(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"stepscope arm --pid {process.pid} --steps 30" in line
        while (armed := stepscope("arm", "--pid", process.pid, "--seconds", "0.1", cwd=tmp_path)).returncode:
            assert process.poll() is None, armed.stderr
        while " recorded " not in stepscope("arm", "--pid", process.pid, "--status", cwd=tmp_path).stdout:
            assert process.poll() is None
        (tmp_path / "end").touch()
        assert process.wait(100) == 0
    (rank,) = load(tmp_path / "run").ranks
    assert len(rank.windows) == 1 and rank.windows[0].steps[0].number > 0


ASKS = """
import os
from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.requests.command import Command
from stepscope.runtime.requests.window_request import WindowRequest
arm = Command(command="arm", request=WindowRequest(steps=1_000_000))
(answer,) = ask_process(os.getpid(), arm, 60)
step()
"""


def test_windows_are_asked_for_until_the_duration_is_over(tmp_path: Path) -> None:
    """With several backends, too. A window that was asked for ends with a step; then the answer says that the time is over."""
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER)
    begin, loop = WHILE_IT_RECORDS.split("while recording", 1)
    (tmp_path / "train.py").write_text(
        f"from torch.optim import optimizer\n{begin}{ASKS}while recording{loop}"
        "(answer,) = ask_process(os.getpid(), arm, 60)\nprint(answer.error)\n"
    )
    backends = ("--backend", "host", "--backend", "memory")
    where = ("--control", "--duration", "5", "-o", "run")
    done = stepscope("run", *backends, *where, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "goes on\n--duration 5 is over\n"), done.stderr
    (rank,) = load(tmp_path / "run").ranks
    (window,) = rank.windows.values()
    assert len(window.steps) > 1 and not complete(tmp_path / "run" / "trace.json", "after")


def test_the_last_steps_for_a_time(tmp_path: Path) -> None:
    """With `--keep-last` recording ends after `--duration`, too, and nothing is saved."""
    done = traced(tmp_path, WHILE_IT_RECORDS, "--no-torch", "--keep-last", "3", "--duration", "0.5")
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    check_messages(done.stderr.splitlines()[0], "0.5 s", "run")


async def test_a_run_goes_to_a_collector(tmp_path: Path) -> None:
    """It has the whole stream; an address that is none is wrong usage."""
    require("litestar")
    (tmp_path / "p.py").write_text("import stepscope as sc\nwith sc.span('work'): pass")
    async with collecting(tmp_path / "collected") as running:
        where = ("--collector", f"ws://127.0.0.1:{running.port}")
        done = await asyncio.to_thread(stepscope, "run", *where, "--quiet", "--out", "run", "p.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (journal,) = journals(tmp_path / "collected")
    assert spans(journal)["work"] == 1
    done = stepscope("run", "--collector", "127.0.0.1:7788", "p.py", cwd=tmp_path)
    assert done.returncode == 2
    check_messages(done.stderr.splitlines()[-1], "--collector", "did you mean 'ws://127.0.0.1:7788'?")


@pytest.mark.parametrize(
    ("options", "program", "replaced"),
    [
        ((), "import stepscope as sc\nwith sc.span('work'): pass", "trace.json"),
        (
            ("--keep-last", "3"),
            "import stepscope as sc\nwith sc.span('work'): raise ValueError('mine')",
            "trace-*.json",
        ),
    ],
    ids=["one trace", "a trace for each window"],
)
def test_files_of_an_earlier_run_are_named_before_they_are_replaced(
    options: tuple[str, ...], program: str, replaced: str, tmp_path: Path
) -> None:
    """The journals of both runs stay, and only one trace has the name."""
    first, again = (traced(tmp_path, program, "--no-torch", *options) for _ in range(2))
    remark = f"stepscope run: run/{replaced} is of an earlier run, and will be replaced; its journal stays"
    assert remark not in first.stderr and remark in again.stderr
    assert options or ((tmp_path / "run" / "journal").is_file() and (tmp_path / "run" / "journal-2").is_file())


def test_a_trace_that_was_replaced_is_made_again(tmp_path: Path) -> None:
    """With `--quiet` nothing is said of the earlier run, whose journal still has all of it."""
    for name in ("first", "second"):
        done = traced(tmp_path, f"import stepscope as sc\nwith sc.span('{name}'): pass", "--no-torch", "--quiet")
        assert of_program(done.stderr) == ""
    assert complete(tmp_path / "run" / "trace.json", "second")
    assert stepscope("convert", "run/journal", "first.json", cwd=tmp_path).returncode == 0
    assert complete(tmp_path / "first.json", "first")


SLOW_STEPS = """
import time
from torch.optim.optimizer import step
for _ in range(12):
    time.sleep(0.2)
    step()
"""


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (("--skip-first", "1", "--wait", "1", "--active", "1", "--repeat", "2"), ["recording from step 2 on, in run", "2 windows recorded, "]),
        (("--keep-last", "20"), ["keeping the last 20 steps; if something goes wrong they are saved in run"]),
        (("--step-on", "none"), ["recording in run"]),
        (("--quiet",), []),
    ],
)  # fmt: skip
def test_a_terminal_shows_that_the_program_is_recorded(
    options: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    """In a line before the program begins, and one for windows that have ended; other streams get none."""
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "p.py").write_text(SLOW_STEPS)
    words = ("run", "--no-torch", *options, "--out", "run", "p.py")
    shown = "\n".join(on_terminal(*words, width=120, cwd=tmp_path, stream="stderr"))
    found = [line.partition("stepscope run: ")[2] for line in shown.splitlines() if "stepscope run: " in line]
    assert all(any(line.startswith(begin) for line in found) for begin in lines), shown
    assert len(found) <= len(lines) + 1 and bool(found) is bool(lines), shown
    assert "stepscope run: rec" not in stepscope(*words, cwd=tmp_path).stderr
