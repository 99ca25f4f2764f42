"""Tools of the tests: programs, servers, fakes, recordings."""
