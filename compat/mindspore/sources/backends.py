"""Which backends record what the options ask for."""

from __future__ import annotations

from stepscope.backends.base import Backend
from stepscope.backends.counters.process_memory import ProcessMemoryBackend
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.backends.mindspore.data_pipeline import MindDataBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.sources.counters import counter_backends
from stepscope.compat.mindspore.sources.device import DeviceTarget


def choose(options: ProfilerOptions, target: DeviceTarget) -> list[Backend]:
    """Backends that record what the options ask for. Frameworks that are not imported yet are left out."""
    chosen: list[Backend] = []
    if "mindspore" in target.frameworks and (options.operators or options.memory):
        chosen.append(
            MindSporeBackend(operators=options.operators, shapes=options.shapes, profile_memory=options.memory)
        )
    if "mindspore" in target.frameworks and options.data_process:
        chosen.append(MindDataBackend())
    if "torch" in target.frameworks and options.operators:
        chosen.append(
            TorchBackend(
                record_shapes=options.shapes,
                profile_memory=options.profile_memory,
                with_flops=options.peak_flops is not None,
            )
        )
    if options.memory:
        chosen.append(ProcessMemoryBackend())
    if options.stacks:
        chosen.append(PythonStacksBackend())
    return [*chosen, *counter_backends(options, target)]
