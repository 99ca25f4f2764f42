"""Front doors for users of other profilers, and callbacks for training frameworks."""
