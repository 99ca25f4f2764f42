"""A run as a whole: its begin, its end and its memory."""
