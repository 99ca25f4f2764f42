"""Programs for those who develop stepscope: none is installed."""
