"""Spans, annotations and tasks: what one costs while something records, and while nothing does."""
