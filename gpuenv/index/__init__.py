"""Where Python packages come from: this host's settings, the indexes, the wheels themselves.

===================  ==========================================================================
module               owns
===================  ==========================================================================
``sources.py``       the values: one source, and all sources with where each was set
``pip_config.py``    pip's own settings, read the way pip reads them
``uv_config.py``     uv's own settings, likewise
``host_config.py``   :func:`~gpuenv.index.host_config.load_package_sources`: both, and the flags
``delivery.py``      how the sources reach the inside of one build, and what of a local folder
``links.py``         pure: index pages to links, file names to what they hold
``simple.py``        the client of simple repositories, remote and on disk
``wheels.py``        which source has the wheel of a matrix row
``wheel.py``         the metadata of a wheel, remote ones by range requests
===================  ==========================================================================
"""
