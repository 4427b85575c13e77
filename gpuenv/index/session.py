"""Sessions of ``requests`` that know one host's settings and look at nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv import __version__
from gpuenv.index.sources import PackageSettingsError

if TYPE_CHECKING:
    from ssl import SSLContext

    from requests import Session

    from gpuenv.index.sources import PackageSources


def tls_context(sources: PackageSources) -> SSLContext:
    """Return the one context of all verified connections.

    It is shared because loading a bundle of CA certificates takes longer than a request.

    Raises:
        PackageSettingsError: The CA bundle or the client certificate cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bundle = sources.certificate
    try:
        if bundle is not None:
            context.load_verify_locations(cafile=bundle.value)
        else:
            _load_default_certificates(context)
    except (OSError, ssl.SSLError) as exc:
        raise _unusable("CA bundle", bundle.value if bundle else None, exc) from exc
    client = sources.client_certificate
    if client is not None:
        try:
            # Without a terminal to ask on, a key with a passphrase must fail and not wait.
            context.load_cert_chain(client.value, password="")
        except (OSError, ssl.SSLError) as exc:
            raise _unusable("client certificate", client.value, exc) from exc
    return context


def _load_default_certificates(context: SSLContext) -> None:
    """Trust what this host trusts, as pip does; where that is nothing, the bundle of certifi."""
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    # A directory of certificates is looked into only when one is needed, so it does not count here.
    directory = ssl.get_default_verify_paths().capath or "/nonexistent"
    has_directory = any(Path(directory).glob("*.0"))
    if not context.cert_store_stats()["x509_ca"] and not has_directory:
        import certifi

        context.load_verify_locations(cafile=certifi.where())


def _unusable(what: str, path: Path | None, exc: OSError) -> PackageSettingsError:
    reason = getattr(exc, "reason", None) or exc.strerror or type(exc).__name__
    return PackageSettingsError(
        f"the {what} {str(path)!r} cannot be used",
        why=str(reason).replace("_", " ").lower(),
        fix="give a PEM file",
    )


def new_session(sources: PackageSources, context: SSLContext | None) -> Session:
    """Return a session; without a context it checks no certificates."""
    import requests
    import urllib3

    session = requests.Session()
    session.trust_env = False  # proxies, netrc and certificates come from the sources
    session.headers["User-Agent"] = f"gpuenv/{__version__}"
    if context is None:
        # The user has said that these hosts need no check; a warning a request helps nobody.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if sources.client_certificate is not None:
            session.cert = str(sources.client_certificate.value)
    adapter = _adapter(context)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


def _adapter(context: SSLContext | None) -> Any:
    import urllib3
    from requests.adapters import HTTPAdapter

    retries = urllib3.Retry(
        total=2,
        connect=0,
        read=1,
        status=2,
        backoff_factor=0.2,
        status_forcelist=(502, 503, 504),
        raise_on_status=False,
    )
    if context is None:
        return HTTPAdapter(max_retries=retries)

    class SharedContextAdapter(HTTPAdapter):
        """Uses our context as it is; requests would load its own CA bundle into it."""

        def init_poolmanager(self, *args: Any, **settings: Any) -> None:
            super().init_poolmanager(*args, **settings, ssl_context=context)

        def proxy_manager_for(self, proxy: str, **settings: Any) -> Any:
            return super().proxy_manager_for(proxy, **settings, ssl_context=context)

        def cert_verify(self, *_: Any) -> None:
            """Leave the pool as it is."""

        def build_connection_pool_key_attributes(
            self, request: Any, verify: Any, cert: Any = None
        ) -> Any:
            host, pool = super().build_connection_pool_key_attributes(request, verify, cert)
            own = ("ca_certs", "ca_cert_dir", "cert_file", "key_file")
            return host, {name: value for name, value in pool.items() if name not in own}

    return SharedContextAdapter(max_retries=retries)
