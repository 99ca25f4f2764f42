"""Where the data come from: `device.py` asks the frameworks, `backends.py` chooses, `capabilities.py` says what is missing."""
