"""Where Python packages come from: this host's settings, the indexes, the wheels themselves.

===================  ==========================================================================
module               owns
===================  ==========================================================================
``sources.py``       the values: one source, and all sources with where each was set
``pip_config.py``    pip's own settings, read the way pip reads them
``uv_config.py``     uv's own settings, likewise
``host_config.py``   :func:`~gpuenv.index.host_config.load_package_sources`: both, and the flags
``local.py``         archives on this host, and which of them a build needs
``delivery.py``      how the sources reach the steps of a build
``prepare.py``      both at once, with what the remote indexes have
``locked.py``        the files of a ``gpuenv.lock``: which lie here, where the rest is
``links.py``         pure: index pages to links, file names to what they hold
``simple.py``        the client of simple repositories, remote and on disk
``session.py``       HTTP sessions with this host's certificates and no other settings
``failures.py``      what can go wrong with an index, told apart
``parallel.py``      several questions at once, with a time limit
``wheels.py``        which source has the wheel of a matrix row
``wheel.py``         what a wheel says of itself, remote ones by range requests
===================  ==========================================================================
"""
