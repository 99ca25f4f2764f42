"""Code that tests instrument."""
