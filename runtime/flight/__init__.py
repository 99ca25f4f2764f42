"""The flight recorder: keeps the last steps at all times, and saves them when a trigger fires."""
