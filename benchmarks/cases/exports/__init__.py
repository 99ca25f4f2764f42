"""From events to files and receivers."""
