"""A script for `stepscope run` that patches the standard library at its top: `patches_itself.py LIBRARY END`.

END is `exit`, for status 3, or `wait`, until a signal comes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

LIBRARY, END = sys.argv[1:]
library: Any = importlib.import_module(LIBRARY)
if LIBRARY == "eventlet":
    library.monkey_patch()
else:
    importlib.import_module("gevent.monkey").patch_all()

import stepscope  # noqa: E402


def request() -> None:
    """Serves one."""
    with stepscope.span("request"), stepscope.span("part"):
        library.sleep(0.01)


for greenlet in [library.spawn(request) for _ in range(3)]:
    (greenlet.wait if LIBRARY == "eventlet" else greenlet.join)()
print("ready", flush=True)
if END == "wait":
    library.sleep(60)
sys.exit(3)
