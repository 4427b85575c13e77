"""Key-only SSH into an environment: keys, the server inside, what the client has to know.

=====================  ========================================================================
module                 owns
=====================  ========================================================================
``keys.py``              making ours, reading and refusing those of others
``server.py``            ``sshd_config``; pure
``known_hosts.py``       our own file of host keys, by alias
``client_config.py``   the one ``Include`` line in the user's configuration, in and out again
=====================  ========================================================================
"""
