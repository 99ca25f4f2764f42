"""MindSpore's profiler on stepscope's runtime; users import `stepscope.mindspore`.

Read `profiler.py` first, then the folders in the order in which a recording passes them: `options`, `sources`, `recording`,
`analysis`, `products`. `monitor` is the dynamic monitor, `environment.py` follows MS_PROFILER_OPTIONS.
"""
