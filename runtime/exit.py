"""What happens when the interpreter exits with a profiler open: it is closed, within its deadline."""

from __future__ import annotations

import atexit
import concurrent.futures.thread as _workers  # registers its own exit hook: ours must run before it
import threading

from stepscope.runtime.profiler import close_all
from stepscope.runtime.recorder import close_recorder

assert _workers is not None

# Exporters write on worker threads, and the executors that run them end before atexit's functions are called. The
# hook that concurrent.futures uses for that runs in reverse order of registration, and ours was registered later.
# A forked child closes what it has opened itself; nothing of its parent's is left in it.
getattr(threading, "_register_atexit", atexit.register)(close_all)
atexit.register(close_recorder)
