"""`stepscope.instrument`: calls become spans, and nothing else changes."""

from __future__ import annotations

import asyncio
import collections
import copy
import inspect
import io
import math
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Flag
from tests.support.basics import require
from tests.support.instrumented import sample
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.recording import Log, recording

HOME = "tests.support.instrumented.sample"


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Each test leaves the sample as it was."""
    before = {
        owner: dict(vars(owner)) for owner in (sample, sample.Base, sample.Derived, sample.Point, sample.Base.Inner)
    }
    yield
    for owner, attributes in before.items():
        changed = [
            name for name, value in vars(owner).items() if attributes.get(name) is not value and name != "__slotnames__"
        ]
        assert not changed, f"{owner!r} has {changed}"


def names(log: Log) -> list[str]:
    """Names of the spans without the module's."""
    return [row.name.removeprefix(f"{HOME}.") for row in log.spans]


def test_a_module() -> None:
    """Its functions and the methods of its classes; not what it imports, nor its data."""
    with sc.instrument(sample) as made, recording() as log:
        assert sample.add(1, 3, 4, scale=2, more=5) == 26
        assert list(sample.count(2)) == [0, 1]
        assert sample.Base().method(3) == 6
        assert sample.Base.of_class() == "Base" and sample.Base.static(2) == -2
        assert sample.Base.Inner().deep() == "deep"
        assert sample.Point(1, 2).norm() == 3
        assert sample.IMPORTED(4) == 2 and sample.partial(1) == 2 and sample.cached(3) == 3
        with pytest.raises(ValueError, match="^fails$"):
            sample.fail()
    assert set(names(log)) == {
        "add", "count", "Base.method", "Base.of_class", "Base.static", "Base.Inner.deep", "Point.norm", "fail",
    }  # fmt: skip
    assert log.span(f"{HOME}.fail").flags & Flag.ERROR
    assert names(log).count("count") == 3 and names(log).count("add") == 1
    assert {row.category for row in log.spans} == {"function"}
    assert made.names[0] == f"{HOME}.add" and f"{HOME}.Derived.method" in made.names
    assert not any("__init__" in name or "half" in name or "slow" in name for name in made.names)
    assert list(made.refused) == [f"{HOME}.cached"] and "cache_info" in made.refused[f"{HOME}.cached"]
    with recording() as log:
        sample.add(1)
    assert not log.spans


async def test_coroutines_and_async_generators() -> None:
    """They stay what they are, to asyncio and inspect."""
    with sc.instrument(sample), recording() as log:
        assert inspect.iscoroutinefunction(sample.wait) and inspect.isasyncgenfunction(sample.stream)
        assert inspect.isgeneratorfunction(sample.count)
        assert list(await asyncio.gather(sample.wait(1), sample.Base().later())) == [1, 2]
        assert [number async for number in sample.stream(2)] == [0, 1]
    assert sorted(set(names(log))) == ["Base.later", "stream", "wait"]


def test_signatures_and_facts_stay() -> None:
    """Tools read the same of a function as before."""
    before = {name: (inspect.signature(value), value.__doc__, value.__qualname__, value.__module__)
              for name, value in vars(sample).items() if isinstance(value, types.FunctionType)}  # fmt: skip
    methods = {
        name: inspect.signature(getattr(sample.Base, name)) for name in ("method", "of_class", "static", "later")
    }
    with sc.instrument(sample):
        for name, facts in before.items():
            value = getattr(sample, name)
            assert (inspect.signature(value), value.__doc__, value.__qualname__, value.__module__) == facts
        assert {name: inspect.signature(getattr(sample.Base, name)) for name in methods} == methods
        assert inspect.unwrap(sample.add) is not sample.add
        assert sample.also_add is sample.add


def test_functions_are_pickled_by_name() -> None:
    """And methods, class methods and objects."""
    with sc.instrument(sample), recording() as log:
        for item in (sample.add, sample.also_add, sample.Base.static, sample.Base.of_class, sample.Base().method):
            loaded = pickle.loads(pickle.dumps(item))
            assert loaded.__qualname__ == item.__qualname__
        assert pickle.loads(pickle.dumps(sample.add))(1, 1) == 2
        assert pickle.loads(pickle.dumps(sample.Point(1))).norm() == 1
    assert names(log) == ["add", "Point.norm"]


def test_inheritance() -> None:
    """A subclass's method and the one that it calls are spans; what is inherited is not touched by the subclass."""
    with sc.instrument(sample), recording() as log:
        assert sample.Derived().method(3) == 7 and sample.Derived.of_class() == "Derived"
    assert names(log) == ["Base.method", "Derived.method", "Base.of_class"]
    with sc.instrument(sample.Derived) as made, recording() as log:
        assert sample.Derived().method(3) == 7 and sample.Base().method(3) == 6
    assert made.names == (f"{HOME}.Derived.method",)
    assert names(log) == ["Derived.method"]


def test_properties_only_if_asked() -> None:
    """Reading and writing are spans then; docstrings stay, cached properties are left alone."""
    with sc.instrument(sample.Base, include="half", properties=True) as made, recording() as log:
        base = sample.Base()
        assert base.half == 1
        base.half = 5
        assert base.half == 5 and base.slow == 7
        assert sample.Base.half.__doc__ == "Half."
    assert names(log) == ["Base.half"] * 3 and made.names == (f"{HOME}.Base.half",)
    with sc.instrument(sample.Base, include="half") as made:
        assert not made.names


def test_globs_choose() -> None:
    """Of names within the target; names like `__this__` need a glob of their own."""
    chosen = {
        ("add", ()): {"add"},
        ("Base.*", ()): {
            "Base.method", "Base.of_class", "Base.static", "Base.later", "Base.each", "Base.Inner.deep",
        },
        ("Base.*", ("*.Inner.*", "Base.s*")): {"Base.method", "Base.of_class", "Base.later", "Base.each"},
        (("*.method", "wait"), "Derived.*"): {"Base.method", "wait"},
        ("Base.__*", ()): {"Base.__init__", "Base.__call__"},
        ("nothing", ()): set[str](),
    }  # fmt: skip
    for (include, exclude), expected in chosen.items():
        with sc.instrument(sample, include=include, exclude=exclude) as made:
            assert {name.removeprefix(f"{HOME}.") for name in made.names} == expected
    with sc.instrument(sample, include="Base.__*"), recording() as log:
        assert sample.Base()(4) == 4
    assert names(log) == ["Base.__init__", "Base.__call__"]
    wrong: Any
    for wrong in ({"include": [3]}, {"exclude": [None]}, {"category": 3}):
        with refused(TypeError, next(iter(wrong))):
            sc.instrument(sample, **wrong)


def test_doing_it_twice_changes_nothing() -> None:
    """A function that has a span keeps it; the first handle removes it, the second removes nothing."""
    with sc.instrument(sample) as first:
        inside = sample.add
        with sc.instrument(sample) as second, sc.instrument(sample.Base) as third, recording() as log:
            assert second.names == third.names == ()
            sample.add(1)
            sample.Base().method(1)
        assert names(log) == ["add", "Base.method"]
        assert sample.add is inside
        with sc.instrument(sample, include="Base.__init__") as more:
            assert more.names == (f"{HOME}.Base.__init__",)
    assert first.undo() == () == first.undo()
    assert repr(first) == "<Instrumentation of 0 functions, 1 refused>"


def test_functions_that_others_replaced_are_left_alone() -> None:
    """The log names it."""
    before = sample.add
    module: Any = sample
    made = sc.instrument(sample, include=["add", "wait"])

    def other(first: int) -> int:
        return first

    module.add = other
    try:
        assert made.undo() == (f"{HOME}.add",)
        assert module.add is other
    finally:
        module.add = before


def test_c_functions_are_refused() -> None:
    """With the reason: functions of a module are skipped and named; a class, or a function, is an error."""
    with sc.instrument(math) as made:
        assert not made.names and "written in C" in made.refused["math.sqrt"]
    for target, fact in (
        (dict, "builtins.dict"),
        (collections.OrderedDict, "collections.OrderedDict"),
        (len, "with span('len')"),
        (io.BytesIO().read, "BytesIO.read"),
        (sample.add, "@span('add')"),
        (sample.Base().method, "@span('method')"),
        ("sample", "instrument(sample)"),
        (sample.Base(), "instrument(Base)"),
        (3, "int"),
    ):
        with refused(TypeError, fact):
            sc.instrument(target)


def test_a_class_that_keeps_its_attributes() -> None:
    """One that refuses to be changed is named, and the others are changed all the same."""

    class Fixed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise TypeError("fixed")

    class Unchangeable(metaclass=Fixed):
        def method(self) -> int:
            return 1

    with sc.instrument(Unchangeable) as made:
        assert not made.names
        (reason,) = made.refused.values()
        assert reason == "it cannot be replaced: fixed" and Unchangeable().method() == 1


def test_a_model_and_its_layers() -> None:
    """Each `forward` is a span named by its place; results, copies, pickles and state are as before."""
    torch = require("torch")
    nn = torch.nn

    torch.manual_seed(0)  # with other weights the result may be the same without the first layer
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    batch = torch.ones(3, 4)
    expected, state = model(batch), dict(model.state_dict())
    with sc.instrument(model) as made, recording() as log:
        assert torch.equal(model(batch), expected)
        assert inspect.signature(model[0].forward) == inspect.signature(nn.Linear(1, 1).forward)
        assert sc.instrument(model).names == ()
        assert model.state_dict().keys() == state.keys()
        copied = copy.deepcopy(model)
        with torch.no_grad():
            copied[0].weight.zero_()
        assert torch.equal(model(batch), expected) and not torch.equal(copied(batch), expected)
        loaded = pickle.loads(pickle.dumps(model))
        assert torch.equal(loaded(batch), expected)
    assert made.names == tuple(f"Sequential{path}.forward" for path in ("", ".0", ".1", ".1.0", ".1.1"))
    found = [row.name for row in log.spans]
    assert found[:5] == [f"Sequential.{path}forward" for path in ("0.", "1.0.", "1.1.", "1.", "")]
    assert len(found) == 20
    assert not any("forward" in vars(layer) for layer in model.modules())
    assert torch.equal(model(batch), expected)
    with sc.instrument(model, include="1.*", exclude="*.0") as made:
        assert made.names == ("Sequential.1.1.forward",)


def test_an_exception_while_instrumenting_takes_all_back() -> None:
    """A class that raises something else than what is expected leaves nothing half done."""

    class Strange(type):
        def __setattr__(cls, name: str, value: object) -> None:
            if name == "second" and not isinstance(value, types.FunctionType):
                raise AssertionError
            if name == "second":
                raise KeyError(name)
            super().__setattr__(name, value)

    class Target(metaclass=Strange):
        def first(self) -> int:
            return 1

        def second(self) -> int:
            return 2

    before = vars(Target)["first"]
    with pytest.raises(KeyError):
        sc.instrument(Target)
    assert vars(Target)["first"] is before


def test_torch_is_not_imported_for_it() -> None:
    """Nor is any other framework, by importing stepscope."""

    program = (
        "import sys, json, stepscope\nstepscope.instrument(json)\nfrom stepscope import nvtx\n"
        "print('torch' in sys.modules, 'nvtx' in sys.modules)"
    )
    done = run_to_end([sys.executable, "-W", "error", "-c", program])
    assert done.stdout == "False False\n", done.stderr
