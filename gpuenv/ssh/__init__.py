"""Key-only SSH into an environment: keys, the server inside, what the client has to know.

=====================  ========================================================================
module                 owns
=====================  ========================================================================
``client_config.py``   the one ``Include`` line in the user's configuration, in and out again
=====================  ========================================================================
"""
