"""The files of streams: written before anything is confirmed, read while they grow, and whole wherever a crash came."""
