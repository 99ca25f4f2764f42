"""Parts that several commands use: messages, progress, values of options, and how to open what was written."""
