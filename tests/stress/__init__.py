"""Torture, fuzzing, sanitizers, long runs."""
