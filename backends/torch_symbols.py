"""What torch's libraries export and its Python interface does not give, each checked before it is used.

Nothing here is taken on trust: every address, offset and calling convention is compared with what torch's Python
interface says of the same thing, in this process. Whatever does not agree is not used, and the reason is told.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import c_bool, c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.backends.torch_arm import library
from stepscope.runtime.errors import BackendError
from stepscope.runtime.threads import locks

_PEEK = "_ZN2at15sequence_number4peekEv"
_GRAD = "_ZN3c108GradMode10is_enabledEv"
_EXCLUDED = "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE"
_NODE = "_ZN5torch8autograd16get_current_nodeEv"
_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

_DESTROY = "_ZN5torch8autograd8profiler14ProfilerResultD1Ev"
_MAKE = "_ZN5torch8autograd8profiler14ProfilerResultC1Ev"

_TRIED = ("2.13.",)
"""Versions of torch that were tried with the calls that bypass torch's binding; no others are called so."""
_COMPARED = 256
"""Bytes of a node that are searched for its number; nodes are larger."""

_lock = locks.reentrant()
_numbers: str | None = None
"""Why there are no sequence numbers; empty when there are; None before it was tried."""


class _Returned(ctypes.Structure):
    """Room for the smart pointer that a function returns in memory; larger than any, so that C returns it so too."""

    _fields_ = [("object", c_void_p), ("control", c_void_p), ("pad", c_void_p * 2)]


class _String(ctypes.Structure):
    """A `std::string` of libstdc++'s new ABI, which the name of the symbol vouches for."""

    _fields_ = [("data", c_void_p), ("length", c_size_t), ("capacity", c_size_t), ("pad", c_size_t)]


def enable_numbers() -> str:
    """Lets the ITT collector read autograd's sequence numbers, which tie backward operators to forward ones.

    Runs a small backward pass on the calling thread, once per process.

    Returns:
        An empty string, or why the numbers cannot be had.
    """
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


def free_without_gil(result: Any) -> bool:
    """Empties a kineto result, so that dropping it holds the GIL no longer than dropping a small object does.

    Otherwise freeing takes 0.3 to 3 µs per operator. The result is destroyed in place, and an empty one is made there.

    Returns:
        False if that cannot be done here; the result is as it was then.
    """
    address = _address(result)
    if address is None:
        return False
    try:
        destroy = _function("libtorch_cpu.so", _DESTROY, None, c_void_p)
        make = _function("libtorch_cpu.so", _MAKE, None, c_void_p)
    except (AttributeError, OSError):
        return False
    destroy(address)
    make(address)
    return True


def _address(result: Any) -> int | None:
    """Where the C++ object of a kineto result is: pybind11 keeps that right after the Python object's header.

    The C++ object begins with the start of the trace in ns, which no other word is likely to equal.
    """
    if sys.platform != "linux" or not str(import_module("torch").__version__).startswith(_TRIED):
        return None
    address = c_uint64.from_address(id(result) + object.__basicsize__).value
    if address < 4096 or address % 8 or c_uint64.from_address(address).value != result.trace_start_ns():
        return None
    return address


def _function(library: str, name: str, returns: Any, *takes: Any) -> Any:
    """A function of one of torch's libraries, which is loaded already. Calls of it release the GIL.

    Raises:
        OSError: if the library is not loaded.
        AttributeError: if it does not export the name.
    """
    torch: Any = import_module("torch")
    path = Path(torch.__file__).parent / "lib" / library
    function = getattr(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY), name)
    function.restype, function.argtypes = returns, takes
    return function


def _enable_numbers(torch: Any) -> None:
    if sys.platform != "linux" or not str(torch.__version__).startswith(_TRIED):
        raise BackendError(f"not tried with torch {torch.__version__} on {sys.platform}")
    peek = _function("libtorch_cpu.so", _PEEK, c_uint64)
    grad = _function("libc10.so", _GRAD, c_bool)
    excluded = _function("libc10.so", _EXCLUDED, c_bool, c_uint16)
    node = _function("libtorch_cpu.so", _NODE, _Returned)
    key = int(torch._C.DispatchKey.AutogradFunctionality)
    with torch.inference_mode(False), torch.enable_grad():
        _agree("the next sequence number", peek(), torch._C._autograd._get_sequence_nr())
        _agree("whether gradients are on", grad(), True)
        with torch.no_grad():
            _agree("whether gradients are on", grad(), False)
        _agree("being below autograd", excluded(key), False)
        with torch._C._AutoDispatchBelowAutograd():
            _agree("being below autograd", excluded(key), True)
        layout = _node_layout(torch, node)
    set_numbers = ctypes.CDLL(library()).stepscope_itt_numbers
    set_numbers.argtypes = [c_void_p] * 4 + [c_uint32] * 4
    set_numbers.restype = None
    set_numbers(*(ctypes.cast(f, c_void_p) for f in (peek, grad, excluded, node)), key, *layout)


def _agree(what: str, read: object, said: object) -> None:
    if read != said:
        raise BackendError(f"torch {what} reads {read!r} in memory where torch says {said!r}")


def _node_layout(torch: Any, current_node: Callable[[], _Returned]) -> tuple[int, int, int]:
    """Finds where nodes keep their number, and where the references to them are counted.

    Each node of a small graph is looked at while it runs. Unused nodes in between make the numbers grow unevenly, so
    that no other field, such as the depth in the graph, grows alike.

    Returns:
        Offset of the number; whether references are counted in a control block (`shared_ptr`, torch before 2.12)
        rather than in the node; offset of the count.
    """
    x = torch.ones(1, device="cpu", requires_grad=True)
    value: Any = x
    nodes: list[Any] = []
    for unused in range(4):
        value = value * 2.0
        nodes.append(value.grad_fn)
        for _number in range(unused + 3):
            _ = x * 3.0
    places: set[int] = set(range(8, _COMPARED, 8))
    counts: set[tuple[int, int]] = set()
    problems: list[BaseException] = []

    def look(number: int) -> None:
        first = current_node()
        address = first.object
        if not address:
            raise BackendError("no node runs inside a node's hook")
        places.intersection_update(
            at for at in range(8, _COMPARED, 8) if c_uint64.from_address(address + at).value == number
        )
        counts.add(_count_references(current_node, first))

    def hook(number: int) -> Callable[[Any], None]:
        def run(_: Any) -> None:
            try:
                look(number)
            except Exception as error:
                problems.append(error)

        return run

    for node in nodes:
        node.register_prehook(hook(node._sequence_nr()))
    value.backward()
    if problems:
        raise BackendError(f"a node could not be read: {problems[0]}") from problems[0]
    if len(places) != 1 or len(counts) != 1:
        raise BackendError(f"nodes do not have the expected layout: number at {sorted(places)}, references {counts}")
    return (places.pop(), *counts.pop())


def _count_references(current_node: Callable[[], _Returned], first: _Returned) -> tuple[int, int]:
    """Sees which counter each further reference raises, and gives all references back, `first` included."""
    inside = [(first.object, at) for at in range(8, 32, 4)]
    before = [c_int.from_address(base + at).value for base, at in inside]
    current_node()
    changed = [i for i, (base, at) in enumerate(inside) if c_int.from_address(base + at).value != before[i]]
    if changed:
        in_control, (base, at), held = 0, inside[changed[0]], before[changed[0]]
    else:
        # shared_ptr: a node is `enable_shared_from_this`, so it holds its control block's address itself.
        _agree("control block of a node", first.control, c_void_p.from_address(first.object + 16).value)
        in_control, base, at = 1, first.control, 8
        held = c_int.from_address(base + at).value - 1
    count = c_int.from_address(base + at)
    current_node()
    if len(changed) > 1 or count.value != held + 2 or not 3 <= held < 1 << 20:
        raise BackendError(f"references to a node are not counted as expected: {held} became {count.value}")
    count.value -= 3
    return in_control, at
