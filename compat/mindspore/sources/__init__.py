"""Where the data come from: `device.py` asks the frameworks, `backends.py` chooses and says what is missing."""
