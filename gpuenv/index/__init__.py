"""Package sources: the host's pip and uv configuration, simple indexes, wheel metadata."""
