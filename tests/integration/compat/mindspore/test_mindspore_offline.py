"""Offline analysis: what is found below a directory, what is passed over and why, and what a crash leaves."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.output_layout import RAW, window_name
from stepscope.mindspore import Profiler, ProfilerDirNotFoundException, ProfilerException, analyse
from stepscope.runtime._core import span
from tests.support import mindspore_output as output
from tests.support.basics import ROOT
from tests.support.commands import stepscope
from tests.support.launch import launched
from tests.support.messages import check_messages, refused


def recorded(path: Path, steps: int = 3) -> Path:
    """The directory of a window that was not analysed."""
    profiler = Profiler(output_path=path, start_profile=False)
    profiler.start()
    output.loop(steps, lambda _: None, lambda _: profiler.step())
    profiler.stop()
    return profiler.directories[0]


@pytest.mark.checklist("C21", "D19")
def test_every_run_below(tmp_path: Path) -> None:
    """The directory above, or that of a window itself: every window is found, the newest first."""
    directories = [recorded(tmp_path / "profiler" / str(number)) for number in range(2)]
    os.utime(directories[0] / RAW, ns=(0, 0))
    analysis = Profiler.offline_analyse(tmp_path, data_simplification=False)
    assert [window.directory.parent for window in analysis.windows] == directories[::-1]
    assert analysis.complete
    alone = Profiler.offline_analyse(str(directories[0]), pretty=True, step_list=[0, 2])
    assert [window.steps for window in alone.windows] == [(0, 2)]
    assert output.steps_of(directories[0], f"{PRODUCTS}-2") == [0, 2]
    assert not (directories[0] / RAW).exists()
    assert analyse(tmp_path, 4, step_list=[1]).windows[0].steps == (1,)  # as MindSpore's function is called


@pytest.mark.checklist("D19")
def test_directories_that_cannot_be_analysed_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each directory that cannot be analysed is named with the reason; it stops no other."""
    good = recorded(tmp_path)
    damaged = recorded(tmp_path)
    (damaged / RAW / "journal").write_bytes(b"this is no journal")
    empty = tmp_path / "empty" / RAW
    empty.mkdir(parents=True)
    (empty / "journal").write_bytes(b"")
    done = recorded(tmp_path)
    Profiler.offline_analyse(done)
    mindspores = tmp_path / "profiler"  # as MindSpore 2.0 writes it
    mindspores.mkdir()
    (mindspores / "profiler_info_0.json").write_text('{"rank_id": "0", "ms_version": "2.0.0", "rank_size": 1}')
    running = Profiler(output_path=tmp_path, start_profile=False)
    running.start()
    with span("under way"):
        analysis = Profiler.offline_analyse(tmp_path)
    running.stop()
    assert [window.directory.parent for window in analysis.windows] == [good]
    reasons = {str(text).split(": ", 1)[0]: text for text in analysis.rejected}
    assert "still runs" in reasons[str(running.windows[0].directory / RAW) if running.windows else ""]
    assert "deleted when its products were complete" in reasons[str(done)]
    assert str(damaged / RAW) in reasons
    assert str(empty) in reasons
    assert str(mindspores) not in reasons, "nothing of it was deleted"
    assert all(text in caplog.text for text in analysis.rejected)
    assert "passed over: " in str(analysis)


@pytest.mark.checklist("D19", "D21")
def test_a_directory_without_recordings_is_refused(tmp_path: Path) -> None:
    """An error says so, with what was looked at; a directory that does not exist is another one."""
    with refused(RuntimeError, tmp_path):
        Profiler.offline_analyse(tmp_path)
    with refused(ProfilerDirNotFoundException) as caught:
        Profiler.offline_analyse(tmp_path / "absent")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ProfilerException)
    (tmp_path / RAW).mkdir()
    (tmp_path / RAW / "journal").write_bytes(b"x" * 100)
    with refused(RuntimeError):
        Profiler.offline_analyse(tmp_path)
    mistakes: list[dict[str, Any]] = [{"pretty": 1}, {"data_simplification": "no"}]
    for wrong in mistakes:
        with refused(TypeError, *wrong, "True or False"):
            Profiler.offline_analyse(tmp_path, **wrong)


@pytest.mark.checklist("C16", "C21")
def test_analysing_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stepscope analyse` makes the products of what is below a directory, of all ranks or one, and names what it passes
    over; where there is nothing it fails, with the reason."""
    directories: list[Path] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        directories.append(recorded(tmp_path / "out"))
    one = stepscope("analyse", "out", "--rank", 1, "--steps", 0, 2, "--keep-raw", "--pretty", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert f"window 0, 2 steps: {directories[1].relative_to(tmp_path) / PRODUCTS}\n" in one.stdout
    assert "it is of rank 0; rank_id=1 was asked for" in one.stdout
    assert output.steps_of(directories[1]) == [0, 2]
    assert list((directories[1] / RAW).rglob("journal"))
    every = stepscope("analyse", "out", "--json", cwd=tmp_path)
    assert every.returncode == 0, every.stderr
    assert {window["window"] for window in json.loads(every.stdout)["windows"]} == {0}
    assert output.steps_of(directories[0]) == output.steps_of(directories[1], f"{PRODUCTS}-2") == [0, 1, 2]
    again = stepscope("analyse", "out", cwd=tmp_path)
    assert again.returncode == 1
    assert again.stdout == "" and len(again.stderr.splitlines()) == 1
    check_messages(again.stderr, "stepscope analyse", "out")
    absent = stepscope("analyse", "absent", cwd=tmp_path)
    assert (absent.returncode, absent.stderr) == (1, "stepscope analyse: there is no directory absent\n")
    wrong = stepscope("analyse", "out", "--rank", -1, cwd=tmp_path)
    assert wrong.returncode == 2
    check_messages(wrong.stderr, "-1")


@pytest.mark.checklist("D18")
def test_names_for_mindspores_tools(tmp_path: Path) -> None:
    """`--layout mindspore` puts products where those tools look for them, of any run; a second analysis passes nothing over."""
    own = recorded(tmp_path / "own")
    with sc.trace(
        output_dir=tmp_path / "run", rank=1, world_size=2, schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=2)
    ) as profiler:
        output.loop(3, lambda _: None, lambda _: profiler.step())
    for times in (1, 2):
        done = stepscope("analyse", ".", "--layout", "mindspore", "--keep-raw", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rejected"] == []
        places = [Path(window["directory"]).parent for window in json.loads(done.stdout)["windows"]]
        assert len(set(places)) == 3
        for place in places:
            assert re.fullmatch(r"[^/]+_\d+_\d{17}_ascend_ms(-2)?", place.name)
            assert len(list((tmp_path / place).glob(f"{PRODUCTS}*"))) == times
            assert len(output.steps_of(tmp_path / place)) == (3 if place.parent.name == "own" else 1)
    assert not (own / PRODUCTS).exists()
    infos = {place.parent.name: output.info(tmp_path / place) for place in places}
    assert (infos["own"]["rank_id"], infos["rank1"]["rank_id"], infos["rank1"]["rank_size"]) == ("0", "1", 2)
    wrong = stepscope("analyse", ".", "--layout", "mindspor", cwd=tmp_path)
    assert wrong.returncode == 2
    check_messages(wrong.stderr, "mindspor'", "'mindspore'")


def test_facts_that_are_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They stop no analysis, of their window or of others; a directory for MindSpore's tools has the facts that are whole."""
    metadata, rank = recorded(tmp_path), recorded(tmp_path)
    (metadata / "profiler_metadata.json").write_text('{"half": ')
    (info,) = rank.glob("profiler_info_*.json")
    info.write_text(json.dumps({**json.loads(info.read_text()), "rank_id": "²"}))
    analysis = Profiler.offline_analyse(tmp_path, ascend_names=True)
    assert analysis.complete and len(analysis.windows) == 2
    copied = [sorted(path.name for path in window.directory.parent.glob("*.json")) for window in analysis.windows]
    assert copied == [[info.name]] * 2
    check_messages(caplog.records, "profiler_metadata.json")


CRASHES = """
import os, sys, time
sys.path.append({root!r})
import stepscope.mindspore as ms
from stepscope import span
profiler = ms.Profiler(output_path={path!r}, timeline_limit=3, with_stack=True)
for step in range(5):
    with span("MatMul-op1"):
        pass
    profiler.step()
with span("open"):
    print("ready", flush=True)
    while True:  # a signal that comes just before a sleep begins has its handler called at the end of the sleep
        time.sleep(0.1)
"""


@pytest.mark.checklist("C20", "C21", "F8")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_crash(tmp_path: Path, number: signal.Signals) -> None:
    """A process that dies in a window leaves all that it had recorded; also what the options of the recording were."""
    program = textwrap.dedent(CRASHES).format(root=str(ROOT), path=str(tmp_path))
    with launched([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.wait(60)
    profiler = Profiler(start_profile=False, output_path=tmp_path / "unused")
    analysis = profiler.analyse(offline_path=tmp_path)
    assert analysis is not None
    (window,) = analysis.windows
    assert window.steps[:5] == (0, 1, 2, 3, 4)
    directory = window.directory.parent
    assert output.operators(directory) == ["MatMul-op1"] * 5
    assert "open" in [event["name"] for event in output.events(directory)]
    assert "folded stacks" in [product.name for product in window.products]
    assert not (directory / RAW).exists()


@pytest.mark.checklist("D18")
def test_products_of_any_run(tmp_path: Path) -> None:
    """A run that `trace` recorded has every product that there are data for, of its own rank and with waiting between ranks; its journal stays."""
    for rank in range(2):
        declared = {"parallel_layout": {"dp": 2}, "peak_flops": 1e12} if rank else {}
        with sc.trace(output_dir=tmp_path, rank=rank, world_size=2, metadata=declared) as profiler:
            for _ in range(2):
                with sc.span("Default/network/MatMul-op1", category="cpu_op", FLOPs=1_000_000):
                    pass
                with sc.span("all_reduce", bytes=1000):
                    pass
                with sc.span("fetch", category="dataloader"):
                    pass
                profiler.step()
    done = stepscope("analyse", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        made = {path.name for path in (tmp_path / f"rank{rank}" / PRODUCTS).rglob("*") if path.is_file()}
        assert made >= {
            "trace_view.json",
            "step_phases.csv",
            f"step_trace_raw_{rank}_detail_time.csv",
            "dataset.csv",
            f"flops_{rank}.txt",
            "communication.json",
            f"host_info_{rank}.csv",
        }
        assert (f"flops_utilization_step_{rank}.json" in made) == bool(rank), "only one has declared its peak"
        assert (tmp_path / f"rank{rank}" / "journal").exists()
        with (tmp_path / f"rank{rank}" / PRODUCTS / f"hccl_raw_{rank}.csv").open(newline="") as file:
            assert all(row["wait_cost"] for row in csv.DictReader(file))
        strategy = json.loads((tmp_path / f"rank{rank}" / f"parallel_strategy_{rank}.json").read_text())
        assert (strategy["rank_id"], strategy["rank_size"], strategy["host"]) == (rank, 2, socket.gethostname())
        assert strategy["layout"].get("sizes", {}) == ({"data": 2} if rank else {}), "not known unless it is said"


def test_times_that_no_calendar_has() -> None:
    """A damaged journal may have any: names of directories have the nearest that there is."""
    assert window_name("host", 1, 10**30, "cpu") == "host_1_99991231235959000_cpu_ms"
    assert window_name("host", 1, -(10**30), "cpu") == "host_1_19700101000000000_cpu_ms"
