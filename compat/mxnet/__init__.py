"""The front door for programs written for `mxnet.profiler`; what they import is `stepscope.mxnet`."""
