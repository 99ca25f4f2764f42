"""Windows that operators ask running processes for."""
