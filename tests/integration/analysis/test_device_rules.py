"""Rules about devices, on the simulated device and on traces of several ranks."""

from __future__ import annotations

import time
from pathlib import Path

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import Finding
from stepscope.backends.simulated.simulated import SimulatedDevice
from tests.support.torch_trace import kernel, loop, rows, save, span


def record(directory: Path, devices: list[SimulatedDevice], steps: int = 30) -> Path:
    """A run of steps of 10 ms in an operator, and these devices."""
    with sc.trace(output_dir=directory, backends=devices) as profiler:
        for _ in range(steps):
            with sc.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                time.sleep(0.001)
            with sc.span("aten::mm", category="cpu_op"):
                time.sleep(0.009)
            profiler.step()
    return directory


def findings(path: Path) -> dict[str, Finding]:
    return {finding.id: finding for finding in explain(path).findings}


def test_devices_that_are_busy(tmp_path: Path) -> None:
    """Several, whose gaps hardly ever coincide: any of them is busy nearly all the time. Each is reported by itself."""
    devices = [
        SimulatedDevice(streams=2, kernels_per_second=700 + 210 * number, device=number, name=f"device {number}")
        for number in range(6)
    ]
    path = record(tmp_path / "run", devices)
    assert "device-idle" not in findings(path)
    assert "Quicker kernels" not in explain(path).verdict, "no device alone is what the steps wait for"
    assert len(explain(path).ranks[0].devices) == 6


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    """Communication that overlaps computation does not count."""
    found = findings(save(tmp_path / "a.json", [*rows(), *loop(collective=300, kernel_us=500)]))
    assert (
        found["communication-exposed"].cost_ns == 300_000 and 0.29 < (found["communication-exposed"].cost or 0) < 0.31
    )
    assert "device-idle" not in found
    hidden = findings(save(tmp_path / "b.json", [*rows(), *loop(collective=1e-3, kernel_us=750)]))
    assert "communication-exposed" not in hidden


def copying(pinned: bool, copy_us: float = 400.0) -> list[dict[str, object]]:
    """Steps that begin with a copy to the device, during which half of the kernel runs if the memory is pinned."""
    events = loop()
    name = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
    return [*events, *(kernel(name, 1_000.0 * n + 400, copy_us, category="gpu_memcpy") for n in range(30))]


def test_copies_that_nothing_hides(tmp_path: Path) -> None:
    """The advice depends on the memory; copies during a kernel cost nothing."""
    for pinned, word in ((True, "stream of its own"), (False, "pin_memory")):
        found = findings(save(tmp_path / f"{pinned}.json", [*rows(), *copying(pinned)]))["copies-exposed"]
        assert found.cost_ns == 400_000 and 0.39 < (found.cost or 0) < 0.41
        assert word in (found.action or "") and any("in 30 transfers" in evidence for evidence in found.evidence)
    hidden = [*rows(), *copying(False), *(kernel("gemm", 1_000.0 * n + 380, 450.0, stream=8) for n in range(30))]
    assert "copies-exposed" not in findings(save(tmp_path / "hidden.json", hidden))


def test_an_optimizer_that_launches_for_each_parameter(tmp_path: Path) -> None:
    """It is named where the device idles, if it is neither fused nor works on many at once."""
    slow = [span("user_annotation", "Optimizer.step#AdamW.step", 1_000.0 * n + 895, 90) for n in range(30)]
    events = [event for event in loop() if event["name"] != "aten::mm"]
    events += [span("user_annotation", "Optimizer.step#AdamW.step", 1_000.0 * n + 400, 400) for n in range(30)]
    idle = findings(save(tmp_path / "a.json", [*rows(), *events]))["device-idle"]
    assert "fused=True" in (idle.action or "") and any(
        "one parameter after the other" in each for each in idle.evidence
    )
    events.append(span("cpu_op", "aten::_fused_adamw_", 30_000.0, 1))
    assert "fused=True" not in (findings(save(tmp_path / "b.json", [*rows(), *events]))["device-idle"].action or "")
    assert "fused=True" not in (
        findings(save(tmp_path / "c.json", [*rows(), *loop(), *slow]))["device-idle"].action or ""
    )


def test_no_rank_speaks_for_all(tmp_path: Path) -> None:
    """The one in the middle does; the others are named next to it."""
    for rank, kernel_us in enumerate((50, 800, 810)):
        save(tmp_path / f"rank{rank}.json", [*rows(), *loop(kernel_us=kernel_us)])
    assert "device-idle" not in findings(tmp_path)
    for rank, kernel_us in enumerate((800, 100, 300)):
        save(tmp_path / f"rank{rank}.json", [*rows(), *loop(kernel_us=kernel_us)])
    idle = findings(tmp_path)["device-idle"]
    assert 0.69 < (idle.cost or 0) < 0.71 and any("20% to 90%" in evidence for evidence in idle.evidence)


def test_a_cause_that_covers_the_idling_hides_device_idle(tmp_path: Path) -> None:
    """A device idles while the program waits for data."""
    events = loop()
    for event in events:
        if event["name"] == "aten::mm":
            event["dur"] = 200
        if event["name"] == "train.py(3): step":
            event |= {
                "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "ts": event["ts"] + 250, "dur": 720,
            }  # fmt: skip
    found = explain(
        save(tmp_path / "a.json", [*rows(), *(event for event in events if event["cat"] != "python_function")])
    )
    assert [finding.id for finding in found.findings][0] == "input-bound-in-process"
    assert "device-idle" not in {finding.id for finding in found.findings}
    assert found.ranks[0].devices[0].meanwhile[0].name == "waiting for data"
