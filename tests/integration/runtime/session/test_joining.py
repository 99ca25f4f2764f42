"""Which processes may join a session: reasons of refusals, a process with a profiler of its own, children that do not join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.errors import SessionError
from stepscope.runtime.options import Options
from stepscope.runtime.session.directory import make_session, parts, read_identity, read_options
from tests.support.messages import refused
from tests.support.process_trees import ProcessTree

ORPHANED = """
import logging
def orphaned(work):
    here, there = os.pipe()
    def first():
        while os.getppid() == parent:
            time.sleep(0.01)
        work()
        os.write(there, b"good")
    def middle():
        global parent
        parent = os.getpid()
        in_child(first)
    reap(in_child(middle))
    os.close(there)
    assert os.read(here, 10) == b"good"
"""
"""Calls a function in a process whose parent has ended: the processes of the tests have a session above them."""


def test_without_a_session(process_tree: ProcessTree) -> None:
    """The answer is no, and the log says why, once."""
    process_tree.execute(
        ORPHANED
        + """
logging.basicConfig(level=logging.INFO)
def work():
    assert not sc.join() and not sc.join("x")
    with sc.span("nowhere"):
        pass
orphaned(work)
"""
    )
    assert process_tree.errors.count("no process above this one has a session to join") == 1


def test_a_first_process_that_has_the_variable(process_tree: ProcessTree) -> None:
    """It is set for a whole job: that nobody is above the first process is nothing to warn of."""
    process_tree.execute(
        ORPHANED
        + """
from stepscope.runtime.lifecycle.join import join_from_environment, joined
logging.basicConfig(level=logging.WARNING)
def work():
    os.environ["STEPSCOPE_JOIN"] = "1"
    join_from_environment()
    assert not joined()
orphaned(work)
"""
    )
    assert "no process above" not in process_tree.errors


def test_the_owner_does_not_join(process_tree: ProcessTree) -> None:
    """A data set that calls join() also runs in the training process, where it changes nothing."""
    process_tree.execute("""
    import logging
    logging.basicConfig(level=logging.INFO)
    with trace():
        assert not sc.join() and not sc.join()
        spans("own", 3)
    """)
    assert process_tree.spans() == {("process", "own"): 3}
    assert process_tree.errors.count("this process has a session of its own") == 1


@pytest.mark.parametrize("name", ["", 3, b"x"])
def test_names(name: object) -> None:
    """A name that is none is misuse, in any process."""
    with refused(TypeError, "name"):
        sc.join(name)  # type: ignore[arg-type]


def test_a_name_that_is_set_later(process_tree: ProcessTree) -> None:
    """It counts as long as nothing was recorded, and wins over what multiprocessing says."""
    process_tree.execute(
        """
    def work():
        assert sc.join("first") and sc.join("second")
        spans("x", 2)
        assert sc.join("too late")
        spans("y", 2)
    if __name__ == "__main__":
        with trace():
            child = multiprocessing.get_context("fork").Process(target=work, name="other")
            child.start()
            child.join()
    """,
        STEPSCOPE_JOIN="1",
    )
    assert process_tree.spans() == {("second", "x"): 2, ("second", "y"): 2}


def test_a_profiler_before_anything_is_recorded(process_tree: ProcessTree) -> None:
    """The child, which had joined by itself, leaves and has a session of its own; what it records is in its traces."""
    process_tree.execute(
        """
    def work():
        with sc.trace(output_dir=sys.argv[1] + "-child") as profiler:
            spans("child's", 5)
            assert os.environ["STEPSCOPE_SESSION"] == str(profiler.statistics() and profiler._life.opened.recorder.directory)
        assert "child's" in profiler.summary()
    if __name__ == "__main__":
        with trace() as profiler:
            reap(in_child(work))
            spans("parent's", 5)
            while [w.state for w in profiler.statistics().recorder.workers] == ["recording"]:
                time.sleep(0.01)
        assert [w.state for w in profiler.statistics().recorder.workers] in ([], ["left"], ["ended"])
        assert len(os.listdir(sys.argv[1] + "-child")) == 1
    """,
        STEPSCOPE_JOIN="1",
    )
    assert process_tree.spans() == {("process", "parent's"): 5}


def test_a_profiler_after_something_was_recorded(process_tree: ProcessTree) -> None:
    """It is inert, as what is recorded is the parent's, says so, and every call returns."""
    process_tree.execute("""
    def work():
        sc.join("child")
        spans("before", 5)
        with sc.trace(output_dir=sys.argv[1] + "-child") as profiler:
            profiler.step()
            spans("inside", 5)
            assert not profiler.flush()
            profiler.stop(), profiler.start(), profiler.pause(), profiler.resume()
            profiler.add_metadata("key", 1)
            assert profiler.statistics().state == "inert"
            assert "inert" in str(profiler.report()) and "joined" in profiler.diagnostics()[0]
        assert not os.path.exists(sys.argv[1] + "-child")
    if __name__ == "__main__":
        with trace():
            reap(in_child(work))
    """)
    assert process_tree.spans() == {("child", "before"): 5, ("child", "inside"): 5}
    assert "is inert: this process has joined the session of another" in process_tree.errors


def test_every_call_of_an_inert_profiler_returns(process_tree: ProcessTree) -> None:
    """In a forked child whose parent's other threads had locked every lock that there is."""
    process_tree.execute("""
    def work(profiler, unstarted):
        profiler.step(), profiler.pause(), profiler.resume(), profiler.stop(), profiler.start()
        profiler.add_metadata("key", 1), profiler.add_metadata_json("other", "1")
        assert not profiler.flush(10)
        assert profiler.statistics().state == "inert" and profiler.aggregates() is not None
        assert profiler.summary() is not None and "inert" in str(profiler.report())
        profiler.raise_errors(), profiler.close()
        with unstarted:
            spans("child's own")
    if __name__ == "__main__":
        with trace() as profiler:
            spans("parent's", 5)
            unstarted = sc.trace(output_dir=sys.argv[1] + "-child")
            entered, forked = threading.Event(), threading.Event()
            def hold():
                locks = [each._steps.calls._lock for each in (profiler, unstarted)]
                locks += [each._metadata._lock for each in (profiler, unstarted)] + [profiler._steps.pipeline.inbox._lock]
                for lock in locks:
                    lock.acquire()
                entered.set()
                forked.wait()
                for lock in locks:
                    lock.release()
            thread = threading.Thread(target=hold)
            thread.start()
            entered.wait()
            pid = in_child(lambda: work(profiler, unstarted))
            forked.set()
            thread.join()
            reap(pid)
        assert os.path.exists(sys.argv[1] + "-child/journal")
    """)
    assert process_tree.spans() == {("process", "parent's"): 5}


def test_a_child_closes_its_own_profiler_when_it_exits(process_tree: ProcessTree) -> None:
    """A forked child that leaves a profiler open has it closed at its exit; its parent's stays as it is."""
    process_tree.execute("""
    if __name__ == "__main__":
        with trace() as profiler:
            pid = os.fork()
            if pid == 0:
                sc.trace(output_dir=sys.argv[1] + "-child").start()
                spans("child's", 3)
                sys.exit()
            assert os.waitpid(pid, 0)[1] == 0
            spans("parent's", 3)
            from stepscope.runtime.journal.reader import JournalReader
            with JournalReader(sys.argv[1] + "-child/journal") as reader:
                list(reader)
                assert reader.end is not None and not reader.damage
    """)
    assert process_tree.spans() == {("process", "parent's"): 3}


def test_the_environment_is_as_it_was(process_tree: ProcessTree) -> None:
    """The variable that names the session is there while it is open, and what was there before comes back."""
    process_tree.execute("""
    import atexit
    from stepscope.runtime.recording import recorder
    os.environ["STEPSCOPE_SESSION"] = "/of/another"
    atexit.unregister(recorder.close_recorder)
    with trace() as profiler:
        session = os.environ["STEPSCOPE_SESSION"]
        assert os.stat(session).st_mode & 0o777 == 0o700
        assert os.stat(session + "/control").st_mode & 0o777 == 0o600
    recorder.close_recorder()
    assert os.environ["STEPSCOPE_SESSION"] == "/of/another" and not os.path.exists(session)
    """)


def test_an_ended_session_is_not_joined(process_tree: ProcessTree) -> None:
    """A child that is older than the end of its parent's session says so, and records nothing."""
    process_tree.execute("""
    import logging
    logging.basicConfig(level=logging.INFO)
    from stepscope.runtime.recording.recorder import close_recorder
    def work():
        os.read(pipe[0], 1)
        assert not sc.join()
        spans("nowhere", 3)
    pipe = os.pipe()
    with trace():
        pid = in_child(work)
    close_recorder()
    os.write(pipe[1], b"x")
    reap(pid)
    """)
    assert "cannot join the session" in process_tree.errors


def test_directories_that_are_no_session(tmp_path: Path) -> None:
    """Nothing is believed of a directory that somebody else may have made."""
    session = make_session(Options(session_dir=str(tmp_path)))
    assert read_identity(session).running
    assert read_options(session) == Options(session_dir=str(tmp_path))
    with refused(SessionError, "missing"):
        read_identity(tmp_path / "missing")
    session.chmod(0o755)
    with refused(SessionError, tmp_path):
        read_identity(session)
    session.chmod(0o700)
    (tmp_path / "link").symlink_to(session)
    with refused(SessionError, "link"):
        read_identity(tmp_path / "link")
    (session / "options").write_text(json.dumps({"ring_slots": 1, "unknown": 2}))
    with refused(SessionError, "ring_slots", "64"):
        read_options(session)
    (session / "process.json").write_text("[]")
    with refused(SessionError, tmp_path):
        read_identity(session)
    (session / "1-2").symlink_to(tmp_path)
    assert parts(session) == []
