"""The recorder's session: its directory, its memory, and settings that are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepscope.runtime import _core
from stepscope.runtime.options import Options
from stepscope.runtime.recording.recorder import recorder
from stepscope.runtime.session.system import IN_MEMORY, file_system_of
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.recording import run_program


def test_a_full_session_directory(small_disk: Path) -> None:
    """Where the file system of the rings is full, recording goes on in private memory instead of ending the process."""
    ((seen, opened, failed),) = run_program(
        """
        work = lambda: [instant("x") for _ in range(60_000)]
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with span("open"):
            opened = len(recorder.open_spans())
        seen = sum(len(events) for events, _ in recorder.drain()[1])
        print_json([seen, opened, _core.counts()["rings_failed"] > 0])
        """,
        options=f"session_dir={str(small_disk)!r}",
    )
    assert (seen, opened, failed) == (180_001, 1, True)


def test_a_million_spans_need_no_memory() -> None:
    """Neither spans nor names nor arguments leave anything behind once they are drained."""
    ((growth, rings),) = run_program("""
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        def work(rounds):
            for _ in range(rounds):
                for number in range(5_000):
                    with span("outer", number=number, text="text"):
                        with span("inner"):
                            pass
                recorder.drain()
        work(10)
        before = resident()
        work(100)
        print_json([resident() - before, recorder.statistics().rings])
    """)
    assert growth < 4 << 20 and rings == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("/tmp", 64, 1, "drop_all"),
            "overflow must be 'drop_newest', 'drop_oldest' or 'block', got 'drop_all'",
        ),
        (("/tmp", 100, 1, "drop_newest"), "slots must be a power of two from 64 to 16777216, got 100"),
        (("/" + "x" * 4000, 64, 1, "drop_newest"), "directory name is too long"),
        (("/does/not/exist", 64, 1, "drop_newest"), "No such file"),
    ],
)
def test_a_session_that_cannot_be_opened(arguments: tuple[str, int, int, str], message: str) -> None:
    """Wrong settings are named, and another attempt may follow."""
    (texts,) = run_program(f"""
        from stepscope.runtime import _core
        pid = os.fork()  # a child has no session yet
        if pid:
            sys.exit(os.waitpid(pid, 0)[1])
        try:
            _core.open(*{arguments!r})
        except (ValueError, OSError) as error:
            print_json([str(error)])
        recorders.recorder(Options())
        os._exit(0)
    """)
    assert message in texts[0]


def test_one_session_at_a_time() -> None:
    """A second session in addition to the recorder's is refused."""
    recorder(Options())
    with refused(RuntimeError):
        _core.open("/tmp", 64, 1, "drop_newest")


@pytest.mark.parametrize("place", ["/dev/shm", ""])
def test_a_session_on_a_disk_is_warned_of_once(place: str, tmp_path: Path) -> None:
    """Its slowness reaches the training loop; one in memory is what is meant to be."""
    session = Path(place or tmp_path)
    program = f"""
import stepscope as sc
for number in range(2):
    with sc.trace(output_dir=f"{tmp_path}/run{{number}}", options=sc.Options(session_dir={str(session)!r})):
        pass
"""
    done = run_to_end([sys.executable, "-c", program], timeout=60, check=True)
    assert done.stderr.count("not in memory") == int(file_system_of(session) not in IN_MEMORY)
    assert file_system_of(Path("/dev/shm")) == "tmpfs"
