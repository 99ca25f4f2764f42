"""Sources of the data: `device.py` asks the frameworks, `backends.py` chooses and says what is missing."""
