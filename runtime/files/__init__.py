"""Files of this user alone, paths that depend on surroundings, and our records as bytes."""
