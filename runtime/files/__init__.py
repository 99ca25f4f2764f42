"""Files of this user alone, how they are read and written, paths that depend on surroundings, and our records as bytes."""
