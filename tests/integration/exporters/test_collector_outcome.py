"""A collector that never came: report, log and ledger say the same, and what the report says to do brings everything there."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from stepscope.exporters.nats.servers import NatsAccess
from tests.support.collectors import collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.commands import python
from tests.support.messages import said

PROGRAM = """
import sys
from pathlib import Path
import stepscope as sc
port = sys.argv[1]
Path("token").write_text("t")
exporter = sc.CollectorExporter(f"ws://127.0.0.1:{port}", token=Path("token"))
options = sc.Options(close_timeout=1.5)
with sc.trace(output_dir="a run", exporters=[exporter], options=options) as profiler:
    for number in range(40):
        with sc.span("work", number=number):
            pass
        profiler.step()
profiler.raise_errors()
print(profiler.report())
"""


async def test_what_the_report_says_to_do_sends_everything(tmp_path: Path) -> None:
    """The run ends without an error; the command that its report has, typed where it ran, delivers all that was kept."""
    port = free_port()
    done = await asyncio.to_thread(python, "-c", PROGRAM, port, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  output    collector: "))
    said = line.removeprefix("  output    ")
    assert said in done.stderr and "TimeoutError" not in done.stderr + done.stdout
    counts, _, command = said.partition("; when this process has ended, send that with: ")
    told = re.fullmatch(r"collector: 0 of (\d+) events confirmed, (\d+) kept in (.*) \((.*)\)", counts)
    assert told is not None and int(told[1]) == int(told[2]) >= 80
    assert Path(told[3]) == tmp_path / "a run" / "journal" and f"ws://127.0.0.1:{port}" in told[4]
    program, *words = shlex.split(command)
    assert program == "stepscope"
    async with collecting(tmp_path / "c", port=port, token="t"):
        sent = await asyncio.to_thread(python, "-m", "stepscope", *words, cwd=tmp_path)
    assert sent.returncode == 0 and f"{told[1]} events" in sent.stdout, sent.stderr
    (journal,) = journals(tmp_path / "c")
    assert spans_of(journal)["work"] == 40


async def test_a_wrong_token_is_reported_and_the_command_asks_for_one(tmp_path: Path) -> None:
    """Whether the run had another token, or none."""
    async with collecting(tmp_path / "c", token="t") as running:
        for token in ("token='wrong'", "token=None"):
            program = PROGRAM.replace('token=Path("token")', token).replace("a run", token)
            done = await asyncio.to_thread(python, "-c", program, running.port, cwd=tmp_path)
            said(done.stderr, "401", "token=")
            assert re.search(r"send that with: .* --token-file FILE$", done.stdout, re.MULTILINE), done.stdout


async def test_a_path_that_takes_no_streams_is_reported(tmp_path: Path) -> None:
    """It does not look as if a right were missing, and the path that does is named."""
    async with collecting(tmp_path / "c") as running:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{running.url}/foo"):
                pass
        assert refused.value.response.status_code == 404 and b"/v1/stream" in refused.value.response.body
        assert running.collector.audit.refused == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            ("--token-file", "nofile"),
            "--token-file: nofile, which should hold the secret, cannot be read: No such file",
        ),
        (("--timeout", "-1"), "--timeout must be a number of seconds above 0, got '-1'"),
    ],
)
def test_a_delivery_that_cannot_begin_is_wrong_usage(arguments: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    """It is not tried again until the time is over."""
    done = python("-m", "stepscope", "deliver", tmp_path, "--url", "ws://127.0.0.1:1", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and wanted in done.stderr
    assert not (tmp_path / "a run" / "unsent").exists()


def test_the_way_into_nats_is_reported_as_options(tmp_path: Path) -> None:
    """As the command line takes them."""
    access = NatsAccess(user="me", password_file=tmp_path / "p", ca=tmp_path / "ca", insecure=True)
    assert access.options() == [
        "--nats-user", "me", "--nats-password-file", str(tmp_path / "p"), "--nats-ca", str(tmp_path / "ca"), "--nats-insecure",
    ]  # fmt: skip
    assert NatsAccess().options() == []
