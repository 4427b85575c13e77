"""The SDK's connection over a Unix socket, without the socket it forgets when nobody answers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool

if TYPE_CHECKING:
    import docker


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout  # the stubs have the two classes disagree
        return _Connection(self.base_url, self.socket_path, timeout)


class UnixAdapter(UnixHTTPAdapter):
    """Hands out pools of connections that are closed when they cannot be made."""

    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        """Return the pool for an address; the SDK's own signature."""
        del proxies
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
                self.pools[url] = pool
            return pool


def use_unix_adapter(client: docker.APIClient, path: str, timeout_s: int) -> None:
    """Let a client of a Unix socket use these connections."""
    client.mount("http+docker://", UnixAdapter(f"http+unix://{path}", timeout_s))
