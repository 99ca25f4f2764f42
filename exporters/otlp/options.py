"""Settings of the OTLP exporter that few users need to touch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from stepscope.runtime.settings.checked import Checked

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class OtlpOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent over OTLP, and how; unknown fields are refused. Sizes in bytes, times in seconds.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    service_name: str | None = None
    """`service.name`; default: OTEL_SERVICE_NAME in the environment, else the name of the run."""
    resource: Mapping[str, str | bool | int | float] = {}
    """Further attributes of the resource. They go before OTEL_RESOURCE_ATTRIBUTES, which go before our own."""
    categories: tuple[str, ...] | None = None
    """Categories of which events are sent; `None`: all but those of `leave_out`. Steps are always sent."""
    leave_out: tuple[str, ...] = ("python_function", "cpu_instant_event")
    """Categories of which nothing is sent: by default Python frames and memory events, which are too many for a store."""
    names: tuple[str, ...] | None = None
    """Patterns as of a shell (`aten::*`), one of which the name of an event must match; `None`: any name."""
    min_duration: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Spans that are shorter are not sent."""
    spans_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = 1000.0
    """Most spans for each second of recorded time; the longest are sent. Counters have a budget of the same size.
    `None`: all are sent, which few stores stand."""
    metrics: bool = True
    """Whether counters and the durations of steps are sent as metrics. Receivers of traces alone refuse them."""
    compression: Literal["gzip", "none"] | None = None
    """Default: OTEL_EXPORTER_OTLP_COMPRESSION in the environment, else gzip."""
    timeout: Seconds | None = None
    """For one attempt to send; default: OTEL_EXPORTER_OTLP_TIMEOUT in the environment, else 10."""
    retry_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    """How long a request is tried again that failed in a way that may pass."""
    first_delay: Annotated[float, msgspec.Meta(ge=0.001, le=60)] = 0.5
    """Until the second attempt at most; doubled for each further one, and drawn from the upper half. A receiver that says
    when to come again (`Retry-After`) is obeyed instead."""
    longest_delay: Annotated[float, msgspec.Meta(ge=0.001, le=600)] = 15.0
    """No longer than this."""
    closing_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    """How long the end of the run is held up by a receiver that fails: what it has not taken by then is given up, and
    counted. One that takes requests is sent everything, as far as the deadline for closing allows."""
    batch_spans: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 512
    """Most spans, or points of metrics, of one request."""
    batch_bytes: Annotated[int, msgspec.Meta(ge=1024, le=64 << 20)] = 1 << 20
    """Size of one request before compression that is not exceeded, but by a single span."""
    hold_events: Annotated[int, msgspec.Meta(ge=1)] = 262_144
    """Events that wait for the end of their step, at most. Beyond that they are sent as they are: a span whose parent has
    not ended hangs on its step then."""
    hold_seconds: Seconds = 10.0
    """How long they wait at most, in recorded time."""
    certificate: str | None = None
    """File of certificates to trust instead of the system's; default: OTEL_EXPORTER_OTLP_CERTIFICATE in the environment."""
    client_certificate: str | None = None
    """Ours, for receivers that ask; default: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE."""
    client_key: str | None = None
    """The key of it, if that is another file; default: OTEL_EXPORTER_OTLP_CLIENT_KEY."""
    insecure: bool = False
    """Whether headers and parameters that look like a secret (Authorization, keys, tokens, cookies) may go to another machine
    over `http:`, where others can read them; also OTEL_EXPORTER_OTLP_INSECURE in the environment. Traces without such headers go
    there in any case, as receivers inside a cluster often have no certificate: a warning says so unless this is set."""
    verify: bool = True
    """Whether the receiver's certificate is checked. Without that anybody between may read headers and traces."""
