"""Whole programs, with the servers, browsers and frameworks of others."""
