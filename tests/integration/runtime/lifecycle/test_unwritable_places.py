"""Places that cannot be written: the program goes on, another place is used where nobody named one, and a warning says which."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import ROOT, missing
from tests.support.messages import check_messages

FIELD = ROOT / "tests" / "support" / "programs"
STEPSCOPE = [sys.executable, "-P", "-m", "stepscope"]
"""Without the working directory in `sys.path`: there may be none."""
PROGRAM = "import stepscope\nwith stepscope.span('work'): print('worked')\n"


def unprivileged(command: list[str]) -> list[str]:
    """A command that may not write where modes of files forbid it, as root may."""
    if os.geteuid() != 0:
        return command
    if not shutil.which("setpriv"):
        missing("setpriv", "Install util-linux, or run the tests as another user than root.")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """A directory that cannot be written."""
    place = tmp_path / "read-only"
    place.mkdir(mode=0o555)
    return place


def run(command: list[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100
    )


def test_a_working_directory_that_cannot_be_written(read_only: Path, tmp_path: Path) -> None:
    """Every replacement chooses another directory, and reports it once."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = unprivileged([sys.executable, str(FIELD / "default_outputs.py")])
    ended = run(command, read_only, TMPDIR=str(temporary), ELSEWHERE=str(tmp_path / "elsewhere"))
    assert ended.returncode == 0 and "DONE" in ended.stdout, ended.stderr
    runs = temporary / f"stepscope_runs-{os.geteuid()}"
    assert f"RUN {runs}/stepscope-" in ended.stdout
    assert runs.stat().st_mode & 0o777 == 0o700
    assert len(check_messages(ended.stderr, "output_dir")) == 1
    assert not list(read_only.iterdir())


def test_ranks_share_the_other_place(read_only: Path, tmp_path: Path) -> None:
    """As they share the first one."""
    program = "import stepscope as sc\nwith sc.trace() as p: p.step()\nprint(p.output.path)"
    variables = {"TMPDIR": str(tmp_path), "WORLD_SIZE": "2", "STEPSCOPE_JOB": "shared", "MASTER_PORT": "1"}
    places: list[Path] = []
    for rank in range(2):
        ended = run(unprivileged([sys.executable, "-c", program]), read_only, RANK=str(rank), **variables)
        assert ended.returncode == 0, ended.stderr
        places.append(Path(ended.stdout.strip()))
    assert places[0].parent == places[1].parent and [place.name for place in places] == ["rank0", "rank1"]


def test_a_planted_directory_is_not_used(read_only: Path, tmp_path: Path) -> None:
    """One that others may write to, or a link: nothing is written, the program goes on."""
    planted = tmp_path / f"stepscope_runs-{os.geteuid()}"
    planted.symlink_to(tmp_path)
    program = "import stepscope as sc\nm = sc.exporters.MemoryExporter()\nwith sc.trace(exporters=[m]) as p, sc.span('x'): pass\nprint(len(m.batches))"
    ended = run(unprivileged([sys.executable, "-c", program]), read_only, TMPDIR=str(tmp_path))
    assert ended.returncode == 0 and int(ended.stdout) > 0, ended.stderr
    check_messages(ended.stderr, "stepscope_runs/")
    assert {path.name for path in tmp_path.iterdir()} == {"read-only", planted.name}


def test_the_command(read_only: Path, tmp_path: Path) -> None:
    """`stepscope run` of a program goes elsewhere by default; with a directory that was named it does not begin."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = unprivileged([*STEPSCOPE, "run", "--quiet", str(tmp_path / "program.py")])
    ended = run(command, read_only, TMPDIR=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (0, "worked\n"), ended.stderr
    (written,) = (tmp_path / f"stepscope_runs-{os.geteuid()}").glob("program-*/trace.json")
    assert b"work" in written.read_bytes() and str(written.parent) in ended.stderr
    ended = run([*command[:-2], "--out", "named", command[-1]], read_only)
    assert ended.returncode == 1 and "worked" not in ended.stdout and check_messages(ended.stderr, "output_dir")


def test_a_working_directory_that_is_missing(tmp_path: Path) -> None:
    """Where every path is absolute nobody asks for it; what is relative costs its exporter, and the default goes elsewhere."""
    (tmp_path / "program.py").write_text(PROGRAM)
    gone = ["sh", "-c", 'mkdir gone && cd gone && rmdir "$PWD" && exec "$@"', "sh"]
    temporary = {"TMPDIR": str(tmp_path), "ELSEWHERE": str(tmp_path / "elsewhere")}
    ended = run([*gone, *STEPSCOPE, "run", "--out", str(tmp_path / "run"), str(tmp_path / "program.py")], tmp_path)
    assert ended.returncode == 0 and (tmp_path / "run" / "trace.json").exists(), ended.stderr
    ended = run([*gone, sys.executable, "-P", str(FIELD / "default_outputs.py")], tmp_path, **temporary)
    assert ended.returncode == 0 and "DONE" in ended.stdout, ended.stderr


def container(mount: str, tmp_path: Path, **variables: str) -> dict[str, Any]:
    """The result of a run where the root file system is read-only."""
    if not all(map(shutil.which, ("unshare", "mount", "mountpoint"))):
        missing("unshare or mount", "Install util-linux.")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [
        "unshare",
        *user,
        "--mount",
        "sh",
        str(FIELD / "read_only.sh"),
        sys.executable,
        str(FIELD / "on_a_volume.py"),
    ]
    inherited = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    (tmp_path / "volume").mkdir()
    environment = {
        **inherited,
        "VOLUME": str(tmp_path / "volume"),
        "MOUNT": mount,
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if ended.returncode == 77 or "unshare" in ended.stderr:
        missing("the right to mount", "Run the tests where `unshare --mount` works.")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


SHM = "/dev/shm"


@pytest.mark.parametrize(
    "mount",
    [
        "",
        f"mount -o remount,bind,ro {SHM}",
        f"mount -t tmpfs -o size=64k shm {SHM}",
        f"mount -t tmpfs -o size=64k shm {SHM}; dd if=/dev/zero of={SHM}/full bs=4k count=17 2>/dev/null",
        f"mount -t tmpfs -o nr_inodes=4 shm {SHM}",
        "umount -l /proc",
        "unset HOME; umount -l /dev/shm",
    ],
    ids=["usual", "no shm", "small shm", "full shm", "no inodes", "no proc", "no home"],
)
def test_containers(mount: str, tmp_path: Path) -> None:
    """The run is recorded on the volume: no second choice is looked for before it is needed, and none is fatal."""
    found = container(mount, tmp_path)
    assert found["state"] == "closed" and found["files"] == 2, found


def test_a_container_without_any_place(tmp_path: Path) -> None:
    """By default the journal is lost, and the others are written. Where there is no place for the session, nothing is recorded;
    the report says why."""
    found = container("", tmp_path, BY_DEFAULT="1")
    assert found["state"] == "closed" and found["files"] == 1 and "at journal (error)" in found["report"], found
    (tmp_path / "volume").rmdir()
    found = container(f"mount -o remount,bind,ro {SHM}", tmp_path, BY_DEFAULT="1")
    assert found["state"] == "inert" and "set Options.session_dir" in found["report"], found


@pytest.mark.parametrize(("kind", "count"), [*(("files", count) for count in (0, 4, 5, 8, 11, 16)), ("bytes", 0)])
def test_no_files(kind: str, count: int, tmp_path: Path) -> None:
    """A process at its limit of open files, or that may write none: it goes on, and the report says what failed."""
    ended = run([sys.executable, str(FIELD / "limited.py"), kind, str(count)], tmp_path)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)["report"]
    assert "Too many open files" in report or "File too large" in report, report
