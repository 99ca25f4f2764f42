"""The collector: takes the streams of many ranks, and keeps each as a journal."""

if __name__ != "stepscope.collector":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.collector")
