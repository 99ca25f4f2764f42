"""Commands that read journals and write other files: `analyse`, `convert`, `merge`, `recover`."""
