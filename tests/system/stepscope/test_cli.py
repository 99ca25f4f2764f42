"""The command line: its help, its errors, its colours, `convert` and `recover`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import socket
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.common.values import size
from stepscope.cli.main import NAMES, main
from tests.support.chrome_traces import events_of
from tests.support.commands import on_terminal, python, stepscope
from tests.support.messages import check_messages, refused

REPORT = (
    "doctor",
    "demo",
    "run",
    "explain",
    "report",
    "windows",
    "arm",
    "recover",
    "convert",
    "analyse",
    "deliver",
    "upload",
    "merge",
)
"""Commands that say something which programs may want to read."""
WRITE = ("demo", "run", "report", "recover", "convert", "collect", "merge")
"""Commands that write to a place of the user's choice."""


def usage_error(*arguments: object) -> int:
    """Runs a command that ends in wrong usage; the exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def record(directory: Path, windows: int = 2) -> Path:
    """Records windows of one step with a span `work <n>` each; the journal."""
    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=windows), output_dir=directory, metadata={"lr": 0.5}
    ) as profiler:
        for number in range(windows):
            with sc.span(f"work {number}"):
                pass
            profiler.step()
    return directory / "journal"


def spans(path: Path) -> list[str]:
    """Names of the spans in a Chrome trace of any form, steps left out."""
    return [e["name"] for e in events_of(path) if e["ph"] == "X" and not e["name"].startswith("ProfilerStep")]


# the whole command line


def test_the_command_is_installed() -> None:
    """`stepscope` is the same as `python -m stepscope`."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="stepscope")
    assert entry.load() is main


@pytest.mark.parametrize("command", NAMES)
def test_help_has_examples_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help shows the usage and the exit statuses, in lines that can be read."""
    monkeypatch.setenv("COLUMNS", "100")
    assert usage_error(command, "--help") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 125
    assert "exit codes: 0" in text or "exit codes: the program's own" in text
    assert re.search(rf"examples:\n  stepscope {command}", text)
    assert len(re.findall(r"^usage: [^\n]*(?:\n +[^\n]+)?\n\n", text)) == 1, "a usage of more lines hides an error"
    assert ("--json " in text) is (command in REPORT)
    assert (re.search("-o[ ,]", text) is not None and "--out" in text) is (command in WRITE)


def test_a_missing_option_is_named_in_the_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`collect` has thirty options, and its error is the second line all the same."""
    assert usage_error("collect") == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage == "usage: stepscope collect --dir DIR [options]"
    assert error.endswith("the following arguments are required: -o/--out/--dir")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says which one is installed."""
    assert usage_error("--version") == 0
    assert capsys.readouterr().out == f"stepscope {importlib.metadata.version('stepscope')}\n"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("train.py",), "did you mean: stepscope run train.py"),
        (("conver", "a", "b"), "did you mean 'convert'?"),
        (
            ("run", "--epochs", "3", "p.py"),
            "stepscope run: error: run has no option --epochs; options of the program go after",
        ),
        (("run", "--actve", "3", "p.py"), "stepscope run: error: run has no option --actve; did you mean --active?"),
        (("convert", "a", "b.json", "--windw", "1"), "did you mean --window?"),
        (("convert", "a", "b.json", "c"), "stepscope convert: error: unrecognized arguments: c"),
        (("convert", "a", "b", "--format", "chrom"), "did you mean 'chrome'?"),
        (("merge", "a", "--out", "b", "--format", "ht"), "did you mean 'hta'?"),
        (("run", "--active", "0", "p.py"), "--active must be"),
        (("run", "--active", "x", "p.py"), "error: --active must be a whole number, got 'x'"),
        (("collect", "--dir", "x", "--nats-max-age", "old"), "error: --nats-max-age must be a number, got 'old'"),
        (("run", "--mode", "x", "p.py"), "error: --mode must be one of"),
        (("run", "--active", "1", "--skip-first", "-1", "p.py"), "--skip-first must be"),
        (("arm", "--pid", "1"), "--steps N, --stop N or --seconds S"),
        (("arm", "--pid", "1", "--steps", "0"), "--steps must be a whole number >= 1, got int: 0"),
        (("arm", "--pid", "1", "--steps", "1", "--start", "-3"), "'-3' is no step: write next"),
    ],
)
def test_wrong_usage_names_the_likely_word(
    arguments: tuple[str, ...],
    wanted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line, by the command that it is about, under a usage of two lines at most."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").touch()
    assert usage_error(*arguments) == 2
    *usage, error = capsys.readouterr().err.splitlines()
    assert wanted in error and len(usage) <= 2


def test_the_command_alone_and_help_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all commands, or of the one that is named; without a command it is wrong usage all the same."""
    assert usage_error() == 2
    assert "trace an unchanged program" in capsys.readouterr().err
    assert usage_error("help") == 0
    assert "trace an unchanged program" in capsys.readouterr().out
    assert usage_error("help", "run") == 0
    assert "--keep-last" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--port", "99999", "--port must be a whole number <= 65535, got int: 99999"),
        ("--port", "-1", "--port must be a whole number >= 0, got int: -1"),
        ("--max-streams", "0", "--max-streams must be a whole number >= 1"),
        ("--max-message", "1", "--max-message must be a whole number >= 1048576"),
        ("--keep-newest", "-1", "--keep-newest must be a whole number >= 0"),
        ("--upload-every", "0", "--upload-every must be a number > 0.0"),
        ("--disk", "-5", "--disk must be a whole number >= 0"),
        ("--disk", "1000", "give 524288 at least"),
        ("--disk", "10 parsecs", "--disk: '10 parsecs' is no size"),
        ("--client-ca", "ca.pem", "client certificates (client_ca, --client-ca) need TLS"),
        ("--nats-max-age", "-1", "--nats-max-age"),
        ("--nats-user", "me", "--nats-user and --nats-password-file must be given together"),
        ("--nats-key", "key.pem", "--nats-certificate must be given as well"),
    ],
)
def test_a_setting_that_is_none_is_wrong_usage(
    option: str, value: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the option, and what that takes; nothing is made."""
    assert usage_error("collect", "--dir", tmp_path / "runs", option, value) == 2
    assert wanted in capsys.readouterr().err.splitlines()[1]
    assert not (tmp_path / "runs").exists()


def test_sizes_have_units() -> None:
    """Thousands, or of 1,024, in any case of letters; fractions of a byte are none."""
    texts = ("0", "-5", "7B", "10GB", "10 gb", "1.5KiB", "2MiB", "3TiB")
    assert [size(text) for text in texts] == [0, -5, 7, 10**10, 10**10, 1536, 2 << 20, 3 << 40]
    for wrong in ("", "GB", "1.5", "1e9", "5 xB", "1,000"):
        with refused(argparse.ArgumentTypeError, "KB", "GiB", "50GB"):
            size(wrong)


def test_an_error_is_one_line(tmp_path: Path) -> None:
    """A failure says what and where; where it was raised is reported on demand."""
    short = stepscope("convert", "missing", "out.journal", cwd=tmp_path)
    assert (short.returncode, short.stdout) == (1, "")
    assert short.stderr == "stepscope convert: there is no run or journal at missing\n"
    long = stepscope("convert", "--traceback", "missing", "out.journal", cwd=tmp_path)
    assert long.returncode == 1
    assert long.stderr.startswith("Traceback") and long.stderr.endswith(short.stderr)


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    """`stepscope ... | head` ends quietly."""
    journal = record(tmp_path / "run")
    journal.write_bytes(journal.read_bytes()[:-10])
    program = (
        "import os, subprocess, sys; r, w = os.pipe(); os.close(r); "
        "done = subprocess.run([sys.executable, '-m', 'stepscope', 'recover', 'run'], stdout=w, stderr=subprocess.PIPE); "
        "sys.exit(done.returncode or len(done.stderr))"
    )
    assert python("-c", program, cwd=tmp_path).returncode == 1


# convert


def test_convert_writes_any_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ending chooses the format, and the run's directory will do for its journal."""
    record(tmp_path / "run")
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out.json")]) == 0
    assert "events of 2 windows written to" in capsys.readouterr().err
    assert spans(tmp_path / "out.json") == ["work 0", "work 1"]
    assert main(["convert", str(tmp_path / "run" / "journal"), str(tmp_path / "named"), "--format", "chrome"]) == 0
    assert (tmp_path / "named").read_bytes() == (tmp_path / "out.json").read_bytes()


def test_an_output_has_its_directory_made(tmp_path: Path) -> None:
    """By all commands alike."""
    journal = record(tmp_path / "run")
    cut = tmp_path / "cut"
    cut.write_bytes(journal.read_bytes()[:-10])
    for command, out in (
        (("convert", journal), "a/b/out.json"),
        (("merge", journal, "--out"), "c/out.json"),
        (("merge", journal, "--format", "hta", "--out"), "d"),
        (("recover", cut, "--out"), "e/journal"),
    ):
        assert main([*map(str, command), str(tmp_path / out)]) == 0
        assert (tmp_path / out).exists()


def test_convert_reports_a_damaged_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that was cut off gives what it has, and a message says that it is not all."""
    journal = record(tmp_path / "run")
    journal.write_bytes(journal.read_bytes()[:-10])
    assert main(["convert", str(journal), str(tmp_path / "out.json")]) == 0
    assert spans(tmp_path / "out.json") == ["work 0", "work 1"]
    assert "torn bytes" in capsys.readouterr().err


def test_convert_refuses_wrong_files_and_endings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown ending, an output over its input, an input that is no journal."""
    journal = record(tmp_path / "run")
    before = journal.read_bytes()
    assert usage_error("convert", journal, tmp_path / "out.doc") == 2
    check_messages(capsys.readouterr().err, ".json (chrome)")
    assert usage_error("convert", journal, journal, "--format", "journal") == 2
    assert journal.read_bytes() == before
    (tmp_path / "text").write_text("this is no journal, " * 100)
    assert main(["convert", str(tmp_path / "text"), str(tmp_path / "out.json")]) == 1
    assert "journal" in capsys.readouterr().err


def test_convert_takes_the_newest_and_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several journals the newest is read, as recover does it, or what was recovered since."""
    run = tmp_path / "run"
    record(run, 1)
    record(run, 2)
    assert main(["convert", str(run), str(tmp_path / "out.json")]) == 0
    assert spans(tmp_path / "out.json") == ["work 0", "work 1"]
    assert re.search(r"reading .*run/journal-2 \(not journal: name one", capsys.readouterr().err)
    newest = run / "journal-2"
    newest.write_bytes(newest.read_bytes()[:-10])
    assert main(["recover", str(run)]) == 0
    printed = capsys.readouterr().out
    assert f"from {newest}" in printed and "not used, name one to recover it: journal\n" in printed
    assert main(["convert", str(run), str(tmp_path / "again.json")]) == 0
    assert "run/journal-2" in capsys.readouterr().err
    record(run, 3)
    assert main(["convert", str(run), str(tmp_path / "third.json")]) == 0
    check_messages(capsys.readouterr().err, "run/journal-3", "journal-2, journal")


def test_convert_names_directories_with_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message for the directory above a run names the run."""
    record(tmp_path / "demo" / "stream")
    record(tmp_path / "demo" / "deep" / "rank0")
    for command in (
        ["convert", str(tmp_path / "demo"), str(tmp_path / "out.json")],
        ["recover", str(tmp_path / "demo")],
    ):
        assert main(command) == 1
        errors = capsys.readouterr().err
        assert str(tmp_path / "demo" / "stream") in errors and str(tmp_path / "demo" / "deep" / "rank0") in errors


# recover

KILLED = """
import os, signal, time
import stepscope as sc
while not os.path.exists("run/trace.json") or not os.path.getsize("run/trace.json"):
    time.sleep(0.001)
with sc.span("before"):
    pass
with sc.span("not ended"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_recover_brings_back_a_killed_run(tmp_path: Path) -> None:
    """After `kill -9` the spans are there, the one that had not ended too, and the trace is whole again."""
    (tmp_path / "killed.py").write_text(KILLED)
    assert stepscope("run", "--out", "run", "killed.py", cwd=tmp_path).returncode == -9
    early = stepscope("convert", "run", "early.json", cwd=tmp_path)
    assert (
        early.returncode == 0
        and "a process that wrote here was killed: more may be had with stepscope recover run" in early.stderr
    )
    cut = (tmp_path / "run" / "trace.json").read_bytes()
    alone = stepscope("recover", "run/trace.json", cwd=tmp_path)
    assert alone.returncode == 1 and alone.stderr.rstrip().endswith("write it anew: stepscope recover run")
    assert (tmp_path / "run" / "trace.json").read_bytes() == cut
    done = stepscope("recover", "--remove-session", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 open span from" in done.stdout
    (counted,) = re.findall(r"^  ([\d,]+) events in all", done.stdout, re.MULTILINE)
    assert "written anew: run/trace.json" in done.stdout
    assert spans(tmp_path / "run" / "trace.json") == ["before", "not ended"]
    converted = stepscope("convert", "run/journal", "out.json", cwd=tmp_path)
    assert converted.returncode == 0 and "was killed" not in converted.stderr
    assert f"{counted} events of 1 window written" in converted.stderr
    assert spans(tmp_path / "out.json") == ["before", "not ended"]
    assert not (tmp_path / "run" / "session").exists()
    again = stepscope("recover", "run", cwd=tmp_path)
    assert again.returncode == 1 and "recovered already" in again.stderr and "stepscope convert" in again.stderr
    assert stepscope("convert", "run", "same.json", cwd=tmp_path).stderr.startswith("reading run/journal")
    assert spans(tmp_path / "same.json") == ["before", "not ended"]
    forced = stepscope("recover", "--force", "run", cwd=tmp_path)
    assert forced.returncode == 2 and "--out FILE" in forced.stderr


def test_commands_name_written_files_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output has nothing else; what people read goes to standard error."""
    journal = record(tmp_path / "run")
    journal.write_bytes(journal.read_bytes()[:-10])
    assert main(["recover", str(tmp_path / "run"), "--json"]) == 0
    text = capsys.readouterr()
    recovered = json.loads(text.out)
    assert recovered["complete"] and recovered["runs"][0]["journal"] == str(journal) and "see it: " in text.err
    assert main(["convert", str(tmp_path / "run"), "-o", str(tmp_path / "out.json"), "--json"]) == 0
    converted = json.loads(capsys.readouterr().out)
    assert converted["written"] == str(tmp_path / "out.json") and converted["windows"] == 2
    assert usage_error("convert", tmp_path / "run", tmp_path / "out.json", "-o", tmp_path / "other.json") == 2


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Descriptions are wrapped as options are; examples can be pasted."""
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    description = capsys.readouterr().out.partition("Runs a Python program")[2].partition("\npositional")[0]
    assert "--skip-first" in description and max(map(len, description.splitlines())) <= 60


def test_convert_reports_events_that_the_run_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that was full when it was recorded: in words, and in JSON."""
    with sc.trace(output_dir=tmp_path / "run", options=sc.Options(journal_max_bytes=1 << 18)):
        for number in range(1_000_000):
            with sc.span("work", number=number):
                pass
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out.json"), "--json"]) == 0
    dropped = json.loads(capsys.readouterr().out)["ledger"]["outputs"]["journal"]["dropped"]["cap"]
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out.json")]) == 0
    assert f"dropped: {dropped:,} at journal (cap)" in capsys.readouterr().out


def test_recover_without_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty directory is a failure, and so is one that is not there, as it is for `convert`."""
    assert main(["recover", str(tmp_path)]) == 1
    check_messages(capsys.readouterr().err, "stepscope recover", tmp_path)
    assert main(["recover", str(tmp_path / "missing")]) == main(["convert", str(tmp_path / "missing"), "x.json"]) == 1
    assert capsys.readouterr().err.count("there is no run or journal at") == 2
    record(tmp_path / "run")  # which has ended: a whole journal is not written a second time
    assert main(["recover", str(tmp_path / "run")]) == 1
    check_messages(capsys.readouterr().err, "stepscope recover", tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["journal"]


# progress


def refused_delivery(run: Path, port: int) -> list[object]:
    """A command that waits three seconds for a server that does not answer."""
    return ["deliver", run, "--url", f"ws://127.0.0.1:{port}", "--timeout", 3]


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """A command that works for long draws a bar, and has removed it when it says how it ended."""
    record(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = refused_delivery(Path("run"), server.getsockname()[1])
        lines = on_terminal(*command, width=120, cwd=tmp_path, stream="stderr", status=1)
    bars, erased, after = "\n".join(lines).rpartition("\x1b[2K")
    assert "delivering run/journal" in bars and "0:00:0" in bars
    assert erased and "does not take the journal" in after and "delivering" not in after


def test_no_progress_in_a_pipe(tmp_path: Path) -> None:
    """Programs that read standard error get the messages only."""
    record(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = stepscope(*refused_delivery(Path("run"), server.getsockname()[1]), "--json", cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert "does not take the journal" in line and done.stdout == "" and done.returncode == 1


COMMANDS = {
    "windows": ["windows", "run"],
    "merge": ["merge", "run", "--out", "trace.json"],
    "recover": ["recover", "run/rank0"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_gets_colours(command: str, tmp_path: Path) -> None:
    """Heads of tables and results stand out there; a file gets the text alone."""
    with sc.trace(output_dir=tmp_path / "run", rank=0, world_size=1) as profiler:
        profiler.step()
    journal = tmp_path / "run" / "rank0" / "journal"
    if command == "recover":
        journal.write_bytes(journal.read_bytes()[:-60])
    shutil.copytree(tmp_path / "run", tmp_path / "again" / "run")
    text = "\n".join(on_terminal(*COMMANDS[command], width=200, cwd=tmp_path))
    assert "\x1b[1m" in text or "\x1b[32m" in text
    plain = stepscope(*COMMANDS[command], cwd=tmp_path / "again")
    assert plain.stdout and "\x1b" not in plain.stdout
