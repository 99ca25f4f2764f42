"""The training of `stepscope demo`. Imports torch and scikit-learn, so nothing else here imports it."""
