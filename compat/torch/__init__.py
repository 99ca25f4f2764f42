"""torch.profiler's interface on stepscope's runtime; users import `stepscope.torch`.

Read `profile.py` first, then `results.py` (what a profile answers), `windows` (what happens with each window) and `events`
(a window's events as torch's own objects).
"""
