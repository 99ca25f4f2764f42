"""Producers of events, one source per file. `base.py` is the contract."""

if __name__ != "stepscope.backends":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.backends")
