"""Decoders under arbitrary bytes: what hypothesis tries briefly in `tests/stress/test_fuzz.py`, and a fuzzer for long."""
