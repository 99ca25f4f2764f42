"""What `stepscope demo` trains. Imports torch and scikit-learn, so nothing else here imports it."""
