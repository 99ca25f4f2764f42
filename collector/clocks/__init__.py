"""Clocks of ranks in terms of a collector's, with a bound of the error. `docs/clocks.md` has the model."""
