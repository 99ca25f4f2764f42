"""Functions of torch's libraries that its Python interface does not have, each checked before it is used.

Nothing here is taken on trust: every address, offset and calling convention is compared with what torch's Python
interface says of the same thing, in this process. Symbols that do not agree are not used, and the report has the reason.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from ctypes import c_bool, c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.backends.torch.arm import library
from stepscope.runtime.errors import BackendError
from stepscope.runtime.threads import locks

_PEEK = "_ZN2at15sequence_number4peekEv"
_GRAD = "_ZN3c108GradMode10is_enabledEv"
_EXCLUDED = "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE"
_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

TRIED_VERSIONS = frozenset({"2.13.0"})
"""Releases of torch that were tried with the calls that bypass torch's binding, whatever they were built for (`2.13.0+cpu`). No
others are called so, and no builds between releases (`2.13.0a0+git`), whose memory may differ."""
_COMPARED = 256
"""Bytes of a node that are searched for its number; nodes are larger."""

_TLS_MODULE, _TLS_BLOCK = 9, 10
"""Requests RTLD_DI_TLS_MODID and RTLD_DI_TLS_DATA of dlinfo(3)."""
_PT_TLS = 7

_lock = locks.reentrant()
_numbers: str | None = None
"""Why there are no sequence numbers; empty when there are; None before it was tried."""


class _String(ctypes.Structure):
    """A `std::string` of libstdc++'s new ABI, which the name of the symbol vouches for."""

    _fields_ = [("data", c_void_p), ("length", c_size_t), ("capacity", c_size_t), ("pad", c_size_t)]


def enable_numbers() -> str:
    """Lets the ITT collector read autograd's sequence numbers, which tie backward operators to forward ones. Returns why they cannot be
    had; empty if they can. Runs a small backward pass on the calling thread, once per process."""
    global _numbers
    with _lock:
        if _numbers is None:
            try:
                _enable_numbers(import_module("torch"))
                _numbers = ""
            except (AttributeError, OSError, RuntimeError, TypeError, BackendError) as error:
                _numbers = f"{type(error).__name__}: {error}"
        return _numbers


def save_without_gil(result: Any, path: str) -> bool:
    """Calls `result.save(path)` of a kineto result such that other Python threads go on running.

    torch's own binding holds the GIL for the whole export, 2 to 7 µs per operator. An exception of C++ would end the
    process here; torch has one only for a result that was saved before, so save each once.

    Returns:
        False if that cannot be done here; nothing was written then.
    """
    address = _address(result)
    if address is None:
        return False
    try:
        save = _function("libtorch_cpu.so", _SAVE, None, c_void_p, c_void_p)
    except (AttributeError, OSError):
        return False
    text = ctypes.create_string_buffer(os.fsencode(path))
    string = _String(ctypes.addressof(text), len(text.value), len(text.value))
    save(address, ctypes.byref(string))
    return True


def _is_tried(torch: Any) -> bool:
    return sys.platform == "linux" and str(torch.__version__).partition("+")[0] in TRIED_VERSIONS


def _address(result: Any) -> int | None:
    """The address of the C++ object of a kineto result: pybind11 keeps that right after the Python object's header.

    The C++ object begins with the start of the trace in ns, which no other word is likely to equal.
    """
    if not _is_tried(import_module("torch")):
        return None
    address = c_uint64.from_address(id(result) + object.__basicsize__).value
    if address < 4096 or address % 8 or c_uint64.from_address(address).value != result.trace_start_ns():
        return None
    return address


def _loaded(library: str) -> tuple[Path, ctypes.CDLL]:
    """Opens one of torch's libraries, without loading it. Raises `OSError` if it is not loaded."""
    torch: Any = import_module("torch")
    path = Path(torch.__file__).parent / "lib" / library
    return path, ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def _function(library: str, name: str, returns: Any, *arguments: Any) -> Any:
    """A function of one of torch's libraries, which is loaded already. Calls of it release the GIL.

    Raises:
        OSError: if the library is not loaded.
        AttributeError: if it does not export the name.
    """
    function = getattr(_loaded(library)[1], name)
    function.restype, function.argtypes = returns, arguments
    return function


def _enable_numbers(torch: Any) -> None:
    if not _is_tried(torch):
        raise BackendError(f"not tried with torch {torch.__version__} on {sys.platform}")
    peek = _function("libtorch_cpu.so", _PEEK, c_uint64)
    grad = _function("libc10.so", _GRAD, c_bool)
    excluded = _function("libc10.so", _EXCLUDED, c_bool, c_uint16)
    key = int(torch._C.DispatchKey.AutogradFunctionality)
    with torch.inference_mode(False), torch.enable_grad():
        _agree("the next sequence number", peek(), torch._C._autograd._get_sequence_nr())
        _agree("whether gradients are on", grad(), True)
        with torch.no_grad():
            _agree("whether gradients are on", grad(), False)
        _agree("being below autograd", excluded(key), False)
        with torch._C._AutoDispatchBelowAutograd():
            _agree("being below autograd", excluded(key), True)
        module, offset, number_at = _current_node(torch)
    set_numbers = ctypes.CDLL(library()).stepscope_itt_numbers
    set_numbers.argtypes = [*[c_void_p] * 3, *[c_uint64] * 2, *[c_uint32] * 2]
    set_numbers.restype = None
    functions = (ctypes.cast(function, c_void_p) for function in (peek, grad, excluded))
    set_numbers(*functions, module, offset, key, number_at)


def _agree(what: str, read: object, expected: object) -> None:
    if read != expected:
        raise BackendError(f"torch {what} reads {read!r} in memory where torch says {expected!r}")


def _current_node(torch: Any) -> tuple[int, int, int]:
    """Finds the variable of each thread in which autograd's engine has the node that it runs, and a node's number in it.

    While each node of a small graph runs, the variables of this thread are searched for its address, and the node for
    its number. Unused nodes in between make the numbers grow unevenly, so that no other field, such as the depth in the
    graph, grows alike. Memory is read only.

    Returns:
        Number of the library, as the system counts those with variables of threads; offset of the variable among these;
        offset of the number in a node.
    """
    module, variables = _thread_variables("libtorch_cpu.so")
    x = torch.ones(1, device="cpu", requires_grad=True)
    value: Any = x
    nodes: list[Any] = []
    for unused in range(4):
        value = value * 2.0
        nodes.append(value.grad_fn)
        for _number in range(unused + 3):
            _ = x * 3.0
    offsets, places = set(range(0, len(variables) * 8, 8)), set(range(8, _COMPARED, 8))

    def hook(node: Any) -> Callable[[Any], None]:
        # A node in Python is its header and a smart pointer to the one in C++.
        address = c_uint64.from_address(id(node) + object.__basicsize__).value
        number = node._sequence_nr()

        def look(_: Any) -> None:
            if address < 4096 or address % 8:
                places.clear()
                return
            offsets.intersection_update(at for at in range(0, len(variables) * 8, 8) if variables[at // 8] == address)
            places.intersection_update(
                at for at in range(8, _COMPARED, 8) if c_uint64.from_address(address + at).value == number
            )

        return look

    for node in nodes:
        node.register_prehook(hook(node))
    value.backward()
    offsets = {at for at in offsets if variables[at // 8] == 0}  # no node runs now
    if len(places) != 1 or len(offsets) != 1:
        raise BackendError(
            f"nodes are not as expected: the running one at {sorted(offsets)}, its number at {sorted(places)}"
        )
    return module, offsets.pop(), places.pop()


def _thread_variables(library: str) -> tuple[int, Any]:
    """Number of one of torch's libraries among those with variables of threads, and those of this thread as 64-bit words.

    Raises:
        OSError: if the library is not loaded, or its file cannot be read.
        BackendError: if it has no such variables.
    """
    path, loaded = _loaded(library)
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [c_void_p, c_int, c_void_p]
    module, block = c_size_t(), c_void_p()
    failed = dlinfo(loaded._handle, _TLS_MODULE, ctypes.byref(module)) or dlinfo(
        loaded._handle, _TLS_BLOCK, ctypes.byref(block)
    )
    nbytes = _thread_variables_nbytes(path)
    if failed or not block.value or not nbytes:
        raise BackendError(f"the variables of threads of {library} are not known")
    return module.value, (c_uint64 * (nbytes // 8)).from_address(block.value)


def _thread_variables_nbytes(path: Path) -> int:
    """Size of the segment PT_TLS of a 64-bit ELF file."""
    with path.open("rb") as file:
        head = file.read(64)
        (at,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(at)
        segments = file.read(size * count)
    for number in range(count):
        kind, *_, nbytes, _align = struct.unpack_from("<II6Q", segments, number * size)
        if kind == _PT_TLS:
            return int(nbytes)
    return 0
