"""Saves what kineto recorded without the GIL, by a function of torch's library.

The function is called only if the object that is found in memory agrees with what torch's Python interface says of it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_size_t, c_uint64, c_void_p
from importlib import import_module
from pathlib import Path
from typing import Any

_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

TRIED_VERSIONS = frozenset({"2.13.0"})
"""Releases of torch that were tried with the calls that bypass torch's binding, whatever they were built for (`2.13.0+cpu`). No
others are called so, and no builds between releases (`2.13.0a0+git`), whose memory may differ."""


class _String(ctypes.Structure):
    """A `std::string` of libstdc++'s new ABI, which the name of the symbol vouches for."""

    _fields_ = [("data", c_void_p), ("length", c_size_t), ("capacity", c_size_t), ("pad", c_size_t)]


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


def _function(library: str, name: str, returns: Any, *arguments: Any) -> Any:
    """A function of one of torch's libraries, which is loaded already. Calls of it release the GIL.

    Raises:
        OSError: if the library is not loaded.
        AttributeError: if it does not export the name.
    """
    torch: Any = import_module("torch")
    path = Path(torch.__file__).parent / "lib" / library
    function = getattr(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY), name)
    function.restype, function.argtypes = returns, arguments
    return function
