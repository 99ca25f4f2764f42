"""Workers of a fork server, which is started once and has the environment of that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, sys
import stepscope as sc

def work(number):
    assert sc.join(f"worker {number}")
    for _ in range(20):
        with sc.span("fetch"):
            pass

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    for run in range(3):
        memory = sc.MemoryExporter()
        with sc.trace(output_dir=f"{sys.argv[1]}/{run}", exporters=[memory]):
            workers = [context.Process(target=work, args=(number,)) for number in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0
        print(memory.names().count("fetch"))
"""


def test_workers_join_each_trace_of_a_process(tmp_path: Path) -> None:
    """A later trace is found by what the fork server knows of the first."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["40", "40", "40"], done.stderr
