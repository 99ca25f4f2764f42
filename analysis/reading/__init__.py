"""Recordings as arrays: `recording.py` reads runs, `torch_traces.py` files of torch.profiler; `run_choice.py` chooses among several runs."""
