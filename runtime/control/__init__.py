"""Control: windows that are asked for while the program runs, by a call, a file, a signal or another process."""
