"""How busy NVIDIA's devices are, as counters. Source: the NVML API reference, and nvml.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, get_args

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads.native_threads import Lock

LIBRARY = "libnvidia-ml.so.1"
"""Part of NVIDIA's driver."""
NOT_SUPPORTED = 3
_SENT, _RECEIVED = 0, 1
"""NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES: from the device's point of view, in kB/s, measured for 20 ms."""


class NvmlError(OSError):
    """Raised if the library is not there or refuses a call; says which and why."""


_LINK_SENT, _LINK_RECEIVED = 138, 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB since the driver was loaded."""
_ALL_LINKS = 0xFFFFFFFF


class _Utilization(ctypes.Structure):
    _fields_ = (("device", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Field(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """The library of that name or file, begun; `close` ends it. Raises `NvmlError` if it cannot be loaded, or has no driver."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"NVIDIA's driver is not there: {error}") from error
        self._closed = False
        self._lock = Lock()
        self._call("nvmlInit_v2")
        try:
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        except NvmlError:
            self.close()
            raise
        self.count: Final = count.value
        """Devices of this machine."""

    def device(self, number: int) -> Device:
        """A device. Raises `NvmlError` if there is none of that number, or it may not be asked."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle))
        return Device(number, handle, self._call, self._text)

    def close(self) -> None:
        """Ends it, once."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._library.nvmlShutdown()

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise NvmlError(NOT_SUPPORTED, f"{name}: this driver does not have it") from error
        code = int(function(*arguments))
        if code:
            raise NvmlError(code, f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        try:
            text = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        text.restype = ctypes.c_char_p
        return bytes(text(code) or b"").decode("utf-8", "replace") or f"error {code}"


class Device:
    """One device. The library numbers them by their places on the PCI bus, whatever CUDA_VISIBLE_DEVICES is."""

    def __init__(
        self, number: int, handle: ctypes.c_void_p, call: Callable[..., None], text: Callable[[int], str]
    ) -> None:
        self.number = number
        self._handle, self._call, self._text = handle, call, text

    def utilization(self) -> Iterator[Reading]:
        """Shares in % of the time in which a kernel ran, and in which the memory was read or written."""
        found = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(found))
        yield Reading("busy %", found.device)
        yield Reading("memory busy %", found.memory)

    def memory(self) -> Iterator[Reading]:
        """Bytes of memory in use, by all processes."""
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(found))
        yield Reading("memory used", found.used)
        yield Reading("memory free", found.free)

    def pcie(self) -> Iterator[Reading]:
        """Bytes in a second. Takes 40 ms."""
        for what, way in (("sent", _SENT), ("received", _RECEIVED)):
            found = ctypes.c_uint()
            self._call("nvmlDeviceGetPcieThroughput", self._handle, ctypes.c_int(way), ctypes.byref(found))
            yield Reading(f"pcie {what} B/s", found.value * 1000)

    def power(self) -> Iterator[Reading]:
        """Watts."""
        found = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", self._handle, ctypes.byref(found))
        yield Reading("power W", found.value / 1000)

    def nvlink(self) -> Iterator[Reading]:
        """Bytes over all links to other devices."""
        fields = (_Field * 2)(_Field(_LINK_SENT, _ALL_LINKS), _Field(_LINK_RECEIVED, _ALL_LINKS))
        self._call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(2), fields)
        for what, found in zip(("sent", "received"), fields, strict=True):
            if found.result:
                raise NvmlError(found.result, f"nvmlDeviceGetFieldValues: {self._text(found.result)}")
            yield Reading(f"nvlink {what} B/s", found.value * 1024, total=True)


NvmlPart = Literal["utilization", "memory", "pcie", "nvlink", "power"]
PARTS: tuple[NvmlPart, ...] = get_args(NvmlPart)


class NvmlBackend(CountingBackend):
    """Records how busy NVIDIA's devices are, by all processes of the machine, as counters of category `device`, such as
    `gpu0 busy %`. It asks the driver's management library (NVML), on a thread of its own.

    Args:
        what: which figures: `utilization` (shares in % of the time in which kernels ran, and the memory was used), `memory`
            (bytes), `pcie` and `nvlink` (bytes in a second, as the device sees it), `power` (watts).
        interval: seconds between two samples. `pcie` takes 40 ms for each device.
        devices: numbers of the devices, by their places on the PCI bus; `None` for all.
        library: name or file of the library.
        name: of this source.

    Raises:
        ValueError: for a part that there is none of, with the nearest; if the interval is not above 0.
    """

    category = "device"

    def __init__(
        self,
        what: Sequence[NvmlPart] = PARTS,
        interval: float = 0.1,
        *,
        devices: Iterable[int] | None = None,
        library: str = LIBRARY,
        name: str = "nvml",
    ) -> None:
        super().__init__(name, interval)
        self._parts = chosen("what", what, PARTS)
        if devices is not None and not isinstance(devices, Iterable):
            raise TypeError(f"devices must be a list of numbers, {got(devices)}; write devices=[{devices!r}]")
        self._requested = None if devices is None else tuple(devices)
        self._library = library
        self._nvml: Nvml | None = None
        self._devices: list[Device] = []
        self._missing: set[tuple[int, str]] = set()

    def open(self, sink: Sink) -> None:
        """Starts the thread.

        Raises:
            BackendError: if the driver is not there, or has no such device.
        """
        try:
            nvml = Nvml(self._library)
        except NvmlError as error:
            raise self._nothing(error) from error
        try:
            self._devices = [nvml.device(number) for number in self._numbers(nvml.count)]
        except (NvmlError, ValueError) as error:
            nvml.close()
            raise self._nothing(error) from error
        self._nvml = nvml
        super().open(sink)

    def _numbers(self, count: int) -> Sequence[int]:
        wanted = range(count) if self._requested is None else self._requested
        for number in wanted:
            if not 0 <= number < count:
                raise ValueError(f"there is no device {number}; known: {', '.join(map(str, range(count)))}")
        if not wanted:
            raise ValueError("the driver knows no device")
        return wanted

    async def aclose(self) -> None:
        await super().aclose()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _read(self) -> Iterator[Reading]:
        for device in self._devices:
            for part in self._parts:
                if (device.number, part) not in self._missing:
                    yield from self._read_part(device, part)

    def _read_part(self, device: Device, part: str) -> Iterator[Reading]:
        try:
            for reading in getattr(device, part)():
                yield reading._replace(name=f"gpu{device.number} {reading.name}")
        except NvmlError as error:
            self._missing.add((device.number, part))
            self._note(f"{part} of gpu{device.number} cannot be read: {error.strerror or error}")


def refusal(library: str = LIBRARY) -> str:
    """The reason why nothing can be read of devices on this machine; empty if it can."""
    try:
        nvml = Nvml(library)
    except NvmlError as error:
        return str(error)
    nvml.close()
    return "" if nvml.count else "the driver knows no device"
