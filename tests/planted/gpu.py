"""One training on a GPU with faults that only a GPU shows, run where there is one and stored as recordings.

python -m tests.planted.gpu DIR [--pack]   runs all of them under `stepscope run`; with --pack, keeps what was recorded
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
from pathlib import Path

import msgspec

from stepscope.analysis.findings import Answer
from stepscope.analysis.reading.recording import load
from stepscope.analysis.tables.rank_summary import RankSummary
from tests.planted.recordings import answer_of, ranks_of, stored, summary_of

PROGRAM = Path(__file__).parent / "programs" / "causal_lm_gpu.py"
PLACE = Path(__file__).parent / "gpu_recordings"
WANTED = {
    "none": "",
    "second-stream": "",
    "slow-items": "input-bound-workers",
    "norms": "value-read-back",
    "pageable": "copies-exposed",
    "emptied": "device-idle",
    "for-each-parameter": "device-idle",
    "graphs": "device-idle",
}
"""By fault, the finding that must be first; empty: there must be none."""


def answer(fault: str) -> Answer:
    """The answer on a stored recording."""
    return answer_of([summary_of(rank) for rank in ranks_of(PLACE / f"{fault}.msgpack.xz")])


def main() -> None:
    """Runs the program with each fault, and says what is found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pack", action="store_true")
    options = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    for fault, wanted in WANTED.items():
        run = options.directory / fault
        command = ["run", "--quiet", "--exporter", "journal", "--out", str(run), str(PROGRAM), fault]
        subprocess.run([sys.executable, "-m", "stepscope", *command], check=True, timeout=300)
        summaries = [RankSummary(rank) for rank in load(run).ranks]
        found = answer_of(summaries)
        first = found.findings[0].id if found.findings else ""
        print(f"{fault}: {'right' if first == wanted else 'WRONG'}, {found.verdict}")
        if options.pack:
            packed = lzma.compress(msgspec.msgpack.encode([stored(summary) for summary in summaries]), preset=9)
            (PLACE / f"{fault}.msgpack.xz").write_bytes(packed)


if __name__ == "__main__":
    main()
