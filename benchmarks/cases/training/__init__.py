"""Trainings with torch: steps with and without tracing, operators, drop-ins for other profilers."""
