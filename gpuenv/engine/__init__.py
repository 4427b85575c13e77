"""The container engine: connect, ask once what it can do, build, create, follow."""
