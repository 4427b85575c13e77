"""The hash of a password, as Jupyter reads it."""

from __future__ import annotations

from gpuenv.errors import ConfigurationError

_SHORTEST = 8


def hash_password(password: str) -> str:
    """Return the argon2id hash of a password in Jupyter's form, ``argon2:$argon2id$…``.

    Raises:
        ConfigurationError: The password is shorter than 8 characters.
    """
    from argon2 import PasswordHasher

    if len(password) < _SHORTEST:
        raise ConfigurationError(
            "the password is too short",
            why=f"it has {len(password)} characters, {_SHORTEST} are the least",
            fix="take a longer one, or leave --password out for a token of 256 bits",
        )
    # Jupyter's own cost: 10 MiB and ten rounds.
    return f"argon2:{PasswordHasher(memory_cost=10240, time_cost=10, parallelism=8).hash(password)}"
