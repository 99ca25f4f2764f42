"""A window's events as torch's own objects: `window_spans.py` reads them, `function_events.py` and `averages.py` convert."""
