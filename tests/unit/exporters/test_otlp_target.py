"""Where OTLP goes: arguments, and variables as OpenTelemetry specifies them."""

from __future__ import annotations

import sys

import msgspec
import pytest

import stepscope as sc
from stepscope.exporters.otlp.encoding import resource
from stepscope.exporters.otlp.options import OtlpOptions, Target
from stepscope.exporters.specimens import run_in
from tests.support.basics import ROOT
from tests.support.messages import refused


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables of the machine that runs the tests."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def target(signal: str = "traces", endpoint: str | None = None, **options: object) -> Target:
    return Target(signal, endpoint, None, OtlpOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("http://host:4318/", "http://host:4318/v1/traces"),
        ("https://host/base/", "https://host/base/v1/traces"),
        ("https://host/base/v1/traces", "https://host/base/v1/traces"),
        ("https://host/base/v1/metrics", "https://host/base/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("https://host?key=1", "https://host/v1/traces?key=1"),
    ],
)
def test_paths_of_signals_are_added_to_the_endpoint(endpoint: str, url: str) -> None:
    """Both signals have their path below it."""
    assert target("traces", endpoint).url == url
    assert target("metrics", endpoint).url == url.replace("traces", "metrics")


@pytest.mark.parametrize(
    ("endpoint", "fact"),
    [
        ("localhost:4318", "http://localhost:4318"),
        ("ftp://host", "http://localhost:4318"),
        ("http://", "http://localhost:4318"),
        ("http://host:99999", "http://localhost:4318"),
        ("http://ho st", "http://localhost:4318"),
        ("http://host\r\nX: y", "http://localhost:4318"),
        ("", "http://localhost:4318"),
        ("http://user:passw0rd@host", "Authorization"),
    ],
)
def test_invalid_endpoints_are_refused(endpoint: str, fact: str) -> None:
    """The error names the remedy, and no password."""
    with refused(ValueError, "endpoint", fact) as caught:
        target("traces", endpoint)
    assert "passw0rd" not in str(caught.value)


def test_variables_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a signal is used as it is and goes first; the general one has the signal's path below it."""
    assert target().url == "http://localhost:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:1/x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://own:2")
    assert target().url == "http://general:1/x/v1/traces"
    assert target("metrics").url == "http://own:2/"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:2/anything")
    assert target().url == "http://own:2/anything"
    assert target("traces", "http://argument:3").url == "http://argument:3/v1/traces"


def test_variables_for_another_protocol_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that speaks gRPC would answer with nonsense."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert target().url == "http://localhost:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    with refused(ValueError, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "endpoint=", "http://localhost:4318"):
        target()
    assert target("traces", "http://collector:4318").url.endswith(":4318/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    assert target().url == "http://collector:4317/v1/traces"


def test_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Percent-encoded in variables; the signal's, then the argument's, replace those of the same name."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Api-Key=one%20two, x-b = 2 ,,x-c=a=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "X-B=3")
    assert Target("metrics", None, {}, OtlpOptions()).headers == {"api-key": "one two", "x-b": "2", "x-c": "a=b"}
    found = Target("traces", None, {"API-KEY": "mine"}, OtlpOptions()).headers
    assert found == {"api-key": "mine", "x-b": "3", "x-c": "a=b"}


@pytest.mark.parametrize(
    "headers",
    [{"a b": "x"}, {"": "x"}, {"a": "x\r\ninjected: 1"}, {"a": "x\0"}, {"Content-Type": "x"}, {"a": 5}, {"a": "€"}],
)
def test_headers_that_would_break_the_request_are_refused(headers: dict[str, str]) -> None:
    """Without repeating a value, which may be a secret."""
    with refused(ValueError, "header") as caught:
        sc.exporters.OtlpExporter("http://host", headers=headers)
    assert "injected" not in str(caught.value)


def test_malformed_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with what they should be; a header's value is not repeated."""
    for name, value, why in (
        ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret", "name=value"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with refused(ValueError, name, why) as caught:
                target()
            assert "s3cret" not in str(caught.value)


def test_arguments_override_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments go first."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca")
    found = target()
    assert (found.timeout, found.gzip, found.certificate) == (2.5, False, "/ca")
    found = target(timeout=1.0, compression="gzip", certificate="/mine")
    assert (found.timeout, found.gzip, found.certificate) == (1.0, True, "/mine")


def test_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attributes of the sender: options go before variables, these before defaults."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,service.name=from%20list,broken")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    run = run_in(ROOT, "my run")
    found = resource(run, "abc", OtlpOptions(resource={"deployment.environment.name": "mine"}))
    assert found["service.name"] == "from list"
    assert found["deployment.environment.name"] == "mine"
    assert (found["host.name"], found["process.pid"], found["stepscope.run"]) == (run.host, 1234, "my run")
    assert "stepscope.job.id" not in found  # the run's, which has none
    assert "stepscope.rank" not in found
    ranked = msgspec.structs.replace(run, rank=3, world_size=8, job="7.cluster")
    expected = {"stepscope.rank": 3, "stepscope.world_size": 8, "stepscope.job.id": "7.cluster"}
    assert expected.items() <= resource(ranked, "abc", OtlpOptions()).items()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from variable")
    assert resource(run, "abc", OtlpOptions())["service.name"] == "from variable"
    assert resource(run, "abc", OtlpOptions(service_name="option"))["service.name"] == "option"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for module in ("aiohttp", "opentelemetry.proto.trace.v1.trace_pb2"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with refused(ImportError, "pip install 'stepscope[otlp]'"):
                sc.exporters.OtlpExporter("http://host")


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("min_duration", 0.0, None),
        ("retry_seconds", 0.0, 3600.0),
        ("first_delay", 0.001, 60.0),
        ("longest_delay", 0.001, 600.0),
        ("closing_seconds", 0.0, 3600.0),
        ("batch_spans", 1, 100_000),
        ("batch_bytes", 1024, 64 << 20),
        ("hold_events", 1, None),
    ],
)
def test_bounds_of_options(name: str, least: float, most: float | None) -> None:
    """The last values on either side are accepted, and the next ones are refused."""
    beyond = 1 if isinstance(least, int) else 0.0001
    for value in (least, most):
        assert value is None or getattr(OtlpOptions(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (least - beyond, None if most is None else most + beyond):
        if value is not None:
            with pytest.raises(ValueError, match=name):
                OtlpOptions(**{name: value})  # type: ignore[arg-type]


def test_a_limit_of_spans_is_more_than_none() -> None:
    """Or there is no limit."""
    assert OtlpOptions(spans_per_second=None).spans_per_second is None
    with pytest.raises(ValueError, match="spans_per_second"):
        OtlpOptions(spans_per_second=0)
