"""How busy NVIDIA's devices are, as counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.backends.counters.nvml_library import LIBRARY, Device, Nvml, NvmlError
from stepscope.runtime.settings.arguments import got

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
            self._note(f"{part} of gpu{device.number} is not told: {error.strerror or error}")


def refusal(library: str = LIBRARY) -> str:
    """Why nothing can be read of devices on this machine; empty if it can."""
    try:
        nvml = Nvml(library)
    except NvmlError as error:
        return str(error)
    nvml.close()
    return "" if nvml.count else "the driver knows no device"
