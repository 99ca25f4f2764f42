"""What tests work with: programs, servers, fakes, recordings."""
