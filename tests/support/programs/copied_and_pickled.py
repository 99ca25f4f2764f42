"""A model with decorated methods, spans and the profiler itself as attributes is copied, saved and sent.

EMA copies models by `copy.deepcopy`, `torch.save` and multiprocessing pickle them, Ray and joblib use cloudpickle.

Right: what torch's own `record_function` and profiler allow is allowed; what cannot be, says so in one sentence.
"""

import copy
import pickle
import sys
import tempfile

import stepscope as sc


class Model:
    """Has spans in all the places that people put them."""

    def __init__(self) -> None:
        self.span = sc.span("attribute")
        self.domain = sc.Domain("model")

    @sc.span("forward")
    def forward(self, x: int) -> int:
        with self.span:
            return x + 1

    @sc.span("async")
    async def later(self) -> int:
        return 1


@sc.span("function")
def function(x: int) -> int:
    """To be sent to another process."""
    return x


faults = []
with tempfile.TemporaryDirectory() as folder:
    memory = sc.exporters.MemoryExporter()
    with sc.trace(output_dir=folder, exporters=[memory]) as profiler:
        model = Model()
        for name, how in {
            "copy": copy.copy,
            "deepcopy": copy.deepcopy,
            "pickle": lambda value: pickle.loads(pickle.dumps(value)),
        }.items():
            for what, value in {
                "model": model,
                "span": sc.span("s"),
                "domain": model.domain,
                "function": function,
                "schedule": sc.schedule(wait=1, warmup=1, active=1),
                "options": sc.Options(),
            }.items():
                try:
                    made = how(value)
                    if what == "model":
                        made.forward(1)
                except Exception as error:
                    faults.append(f"{name} of a {what}: {type(error).__name__}: {error}")
            try:
                how(profiler)
                print(f"  {name} of a profiler: made")
            except Exception as error:
                print(f"  {name} of a profiler: {type(error).__name__}: {error}")
    count = memory.names().count("forward")
    if count != 3:
        faults.append(f"{count} of 3 calls were recorded")
print("WRONG: " + "; ".join(faults) if faults else "ok: all can be copied")
sys.exit(bool(faults))
