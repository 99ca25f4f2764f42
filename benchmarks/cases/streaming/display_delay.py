"""When a collector shows the steps of its ranks: to who listens to its live events, and on its page in a browser."""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import msgspec

PATIENCE = 15.0
"""Seconds in which the last steps must have been shown."""

Shown = dict[str, list[tuple[int, float]]]
"""For each rank's id the steps that were shown as its newest, each with the Unix time at which it was first."""

_WATCH = """() => {
  window.shown = {};
  const titles = [...document.querySelectorAll("#rank-table thead th")].map((head) => head.innerText.trim());
  const at = titles.indexOf("Step");
  const look = () => {
    for (const row of document.querySelectorAll("#rank-table tbody tr[data-id]")) {
      const step = Number(row.children[at].textContent.replaceAll(",", ""));
      const list = (window.shown[row.dataset.id] ??= []);
      if (Number.isInteger(step) && list.at(-1)?.[0] !== step) list.push([step, Date.now() / 1000]);
    }
    requestAnimationFrame(look);
  };
  look();
}"""
"""Notes in the page which steps stand there whenever a frame is about to be painted."""
_DRAWN = """last => [...document.querySelectorAll("#rank-table tbody tr[data-id]")]
  .every((row) => window.shown[row.dataset.id]?.at(-1)?.[0] >= last)"""
"""Whether a step stands in all rows that are there now."""


class _Rank(msgspec.Struct):
    id: str
    step: int | None = None


class _Snapshot(msgspec.Struct):
    """The needed fields of a snapshot."""

    ranks: list[_Rank]


@contextmanager
def listening(url: str) -> Generator[Shown]:
    """Listens to live events inside, as the page does; what was shown is filled in as it comes.

    Args:
        url: of the collector's web server.
    """
    shown: Shown = {}
    answer = urllib.request.urlopen(f"{url}/v1/events")  # noqa: S310
    decode = msgspec.json.Decoder(_Snapshot).decode

    def listen() -> None:
        while line := answer.readline():
            if line.startswith(b"data: {") and len(line) > 20:
                now, snapshot = time.time(), decode(line[6:])
                for rank in snapshot.ranks:
                    if rank.step is not None:
                        shown.setdefault(rank.id, []).append((rank.step, now))

    thread = threading.Thread(target=listen, name="listens to live events", daemon=True)
    thread.start()
    yield shown  # it goes on listening until the collector ends


def browser() -> str | None:
    """The path of Chromium, if it and what drives it are there."""
    found = os.environ.get("STEPSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    return found if found and find_spec("playwright") is not None else None


class Page:
    """The collector's page in a headless browser, on a thread that does nothing while it watches."""

    def __init__(self, url: str, executable: str) -> None:
        """Args: of the collector's web server; the browser."""
        self.shown: Shown = {}
        """Those that were drawn; complete after `close`."""
        self._url, self._executable, self._last = url, executable, 0
        self._ready, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watches the page", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise()

    def close(self, last: int) -> None:
        """Takes what was seen once this step stands in all rows that are drawn, and ends the browser.

        Raises:
            RuntimeError: if it does not come to stand there.
        """
        self._last = last
        self._over.set()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError("the page could not be watched") from self._error

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def _watch(self) -> None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            started = driver.chromium.launch(executable_path=self._executable, args=["--no-sandbox", "--disable-gpu"])
            page = started.new_page(viewport={"width": 1500, "height": 950})
            page.goto(self._url)
            page.get_by_text("live", exact=True).wait_for()
            page.evaluate(_WATCH)
            self._ready.set()
            self._over.wait()
            page.wait_for_function(_DRAWN, arg=self._last, timeout=PATIENCE * 1000)
            found = page.evaluate("window.shown")
            self.shown = {id: [(int(step), float(at)) for step, at in seen] for id, seen in found.items()}
            started.close()


def delays(sent: Mapping[str, Sequence[float]], shown: Shown, *, whole: bool) -> list[float]:
    """Seconds from the sending of each step until it, or a later one, was shown.

    Args:
        sent: for each rank's id the Unix times at which its steps were sent, the first of which has number 0.
        shown: by whom.
        whole: whether all ranks were seen all the time. Otherwise what was shown of a rank first is passed over: its row may
            have come to be seen only then, among a thousand.
    """
    found: list[float] = []
    for id, seen in shown.items():
        times = sent.get(id, ())
        next_step = 0 if whole or not seen else seen[0][0] + 1
        for step, at in seen:
            found += [at - sent_at for sent_at in times[next_step : step + 1]]
            next_step = max(next_step, step + 1)
    return found


def complete(sent: Mapping[str, Sequence[float]], shown: Shown) -> bool:
    """True if the last step of every rank was shown."""
    return all(id in shown and shown[id] and shown[id][-1][0] >= len(times) - 1 for id, times in sent.items())
