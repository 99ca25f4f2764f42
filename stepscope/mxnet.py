"""For programs written for `mxnet.profiler`: `from stepscope import mxnet as profiler`. docs/mxnet.md has the differences."""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from stepscope.compat.mxnet.errors import MXNetError, MXNetStateError, MXNetValueError
from stepscope.compat.mxnet.functions import (
    capabilities,
    close,
    current_file,
    current_profiler,
    dump,
    dump_profile,
    dumps,
    passes,
    pause,
    profiler_set_config,
    profiler_set_state,
    resume,
    set_config,
    set_kvstore_handle,
    set_state,
    step,
)
from stepscope.compat.mxnet.functions import start_from_environment as _start_from_environment
from stepscope.compat.mxnet.objects.domain import Counter, Domain, Marker
from stepscope.compat.mxnet.objects.durations import Event, Frame, Task
from stepscope.compat.mxnet.objects.forwarding import Forward, NvtxForward
from stepscope.compat.mxnet.objects.scopes import current_scope, custom_operator, scope, sub_operator
from stepscope.compat.mxnet.remote import RemoteCollector, RemoteControl, RemoteProcesses
from stepscope.compat.mxnet.settings import Capability, MXNetSettings
from stepscope.compat.mxnet.statistics import FramePass
from stepscope.runtime.lazy import lazy as _lazy

_start_from_environment(_os.environ)

if not TYPE_CHECKING:
    __getattr__, __dir__ = _lazy(__name__)

__all__ = [
    "Capability",
    "Counter",
    "Domain",
    "Event",
    "Forward",
    "Frame",
    "FramePass",
    "MXNetError",
    "MXNetSettings",
    "MXNetStateError",
    "MXNetValueError",
    "Marker",
    "NvtxForward",
    "RemoteCollector",
    "RemoteControl",
    "RemoteProcesses",
    "Task",
    "capabilities",
    "close",
    "current_file",
    "current_profiler",
    "current_scope",
    "custom_operator",
    "dump",
    "dump_profile",
    "dumps",
    "passes",
    "pause",
    "profiler_set_config",
    "profiler_set_state",
    "resume",
    "scope",
    "set_config",
    "set_kvstore_handle",
    "set_state",
    "step",
    "sub_operator",
]
