"""The front door for users of MindSpore's profiler; what they import is `stepscope.mindspore`."""
