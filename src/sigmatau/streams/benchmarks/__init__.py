"""One file a benchmark; the registry finds them by their names."""
