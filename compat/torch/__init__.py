"""`stepscope.torch`: torch.profiler's interface on stepscope's runtime."""
