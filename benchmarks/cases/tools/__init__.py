"""Parts that several cases run: loops, many events, a network, and the sessions to measure in."""
