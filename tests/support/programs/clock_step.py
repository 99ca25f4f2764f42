"""A long-lived service is traced to an OTLP receiver while the wall clock is set by an hour.

Clocks are set by NTP, by hand, and when a machine wakes up. Here `clock_step.c`, preloaded, sets the
clock by one hour after the fourth of eight requests.

Right: the wall time of each span is what `time.time()` was when it began, to within a second, also
after the step; a span across the step may have either.
"""

import gzip
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REQUESTS, BEFORE_STEP = 8, 4
STEP_S = int(os.environ.get("STEP_S", "3600"))


def service(folder: str) -> None:
    import stepscope

    exporter = stepscope.exporters.OtlpExporter(os.environ["RECEIVER"])
    once = stepscope.schedule(wait=0, warmup=0, active=1)
    with stepscope.trace(output_dir=f"{folder}/run", schedule=once, exporters=[exporter]) as profiler:
        for number in range(REQUESTS):
            with stepscope.span("request", wall_ms=int(time.time() * 1000)):
                time.sleep(0.2)
            profiler.step()
            if number == BEFORE_STEP - 1:
                Path(os.environ["CLOCK_FLAG"]).touch()


class Receiver(http.server.BaseHTTPRequestHandler):
    bodies: list[bytes] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("traces"):
            self.bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


def main() -> int:
    try:
        import aiohttp  # noqa: F401
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        print(f"skipped: {error.name} is not installed")
        return 77
    if not shutil.which("cc"):
        print("skipped: cc is missing")
        return 77
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/clock_step.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        clock = {"LD_PRELOAD": library, "CLOCK_STEP": str(STEP_S), "CLOCK_FLAG": f"{folder}/flag"}
        environment = {**os.environ, **clock, "RECEIVER": f"http://127.0.0.1:{server.server_port}"}
        subprocess.run([sys.executable, __file__, folder], env=environment, timeout=50)
    messages = [ExportTraceServiceRequest.FromString(body) for body in Receiver.bodies]
    scopes = [scope for message in messages for part in message.resource_spans for scope in part.scope_spans]
    errors = []
    for span in sorted((s for scope in scopes for s in scope.spans), key=lambda s: s.end_time_unix_nano):
        if span.name == "request":
            wall_ms = next(a.value.int_value for a in span.attributes if a.key == "wall_ms")
            errors.append(round(span.start_time_unix_nano / 1e9 - wall_ms / 1e3))
    right = errors == [0] * REQUESTS
    print("ok:" if right else "WRONG:", f"of {REQUESTS} requests, times are off by {errors} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(service(sys.argv[1]) if len(sys.argv) == 2 else main())
