"""Says what is slow, why, and what to try: reads runs, judges them by rules, shows the answer."""

if __name__ != "stepscope.analysis":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.analysis")
