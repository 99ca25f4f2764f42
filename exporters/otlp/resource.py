"""The resource: who sends. Names are those of OpenTelemetry's semantic conventions, where they have one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote

from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.runtime.export.run import Run
from stepscope.runtime.version import VERSION


def resource(run: Run, instance: str, options: OtlpOptions) -> dict[str, str | bool | int | float]:
    """Attributes of the resource.

    Args:
        run: who recorded.
        instance: tells this run from all others.
        options: the settings, whose attributes count before those of the environment.
    """
    found: dict[str, str | bool | int | float | None] = {
        "service.name": run.name,
        "service.instance.id": instance,
        "host.name": run.host,
        "process.pid": run.pid,
        "telemetry.sdk.name": "stepscope",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": VERSION,
        "stepscope.run": run.name,
        "stepscope.rank": run.rank,
        "stepscope.world_size": run.world_size,
        "stepscope.job.id": run.job or None,
    }
    found |= _from_environment()
    name = os.environ.get("OTEL_SERVICE_NAME")
    found |= {"service.name": name} if name else {}
    found |= dict(options.resource)
    found |= {"service.name": options.service_name} if options.service_name else {}
    return {key: value for key, value in found.items() if value is not None}


def _from_environment() -> Mapping[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: `key=value,key=value`, percent-encoded; what is malformed is left out, as specified."""
    pairs = (part.partition("=") for part in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {unquote(key.strip()): unquote(value.strip()) for key, equals, value in pairs if equals and key.strip()}
