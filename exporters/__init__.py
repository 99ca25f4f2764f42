"""Consumers of events, one format per file. `base.py` is the contract."""

if __name__ != "stepscope.exporters":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.exporters")
