"""Says what is slow, why, and what to try. In order: reading/ makes arrays of a run, tables/ gathers them for each rank, rules/ judge
them, explain.py makes the answer of their findings, and terminal.py and page/ show it.
"""

if __name__ != "stepscope.analysis":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.analysis")
