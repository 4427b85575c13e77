"""Key-only SSH into an environment: keys, the server inside, what the client has to know.

=====================  ========================================================================
module                 owns
=====================  ========================================================================
``environment.py``     plan, find and start; who may log in
``keys.py``            making our keys, reading and refusing those of others
``user_keys.py``       the keys a user has: named, of the agent, in ``~/.ssh``
``server.py``          ``sshd_config``; pure
``host_key.py``        asking a server who it is
``client.py``          how the system's ``ssh`` reaches an environment; pure
``fallback.py``        a session where there is no ``ssh`` program
``known_hosts.py``     our own file of host keys, by alias
``access.py``          what lies on the client's side for ``ssh``, ``scp`` and editors
``client_config.py``   the one ``Include`` line in the user's configuration, in and out again
=====================  ========================================================================
"""
