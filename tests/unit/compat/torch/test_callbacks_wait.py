"""`stop()` waits for `on_trace_ready`, and the log says so when that takes long."""

from __future__ import annotations

import logging
import threading

import pytest

from stepscope.compat.torch.windows import callbacks
from tests.support.messages import check_messages


def test_a_callback_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once; the wait goes on until it has returned. Quick ones are not logged."""
    views: list[int] = []
    quick = callbacks.Callbacks(views.append)
    quick.put(1)
    quick.finish()
    assert views == [1] and not caplog.text
    monkeypatch.setattr(callbacks, "LOG_AFTER_S", 0.05)
    goes_on = threading.Event()
    returned: list[bool] = []

    class Releasing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            goes_on.set()

    log = logging.getLogger("stepscope")
    handler = Releasing(logging.WARNING)
    log.addHandler(handler)
    try:
        calls = callbacks.Callbacks(lambda view: returned.append(goes_on.wait(30)))
        calls.put(1)
        calls.finish()
    finally:
        log.removeHandler(handler)
    assert returned == [True]
    assert len(check_messages(caplog.records, "on_trace_ready", "0.05 s")) == 1
