"""What this host's pip and uv settings mean, and that no password of them shows."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.index.host_config import SourceFlags, load_package_sources, read_constraints
from gpuenv.index.pip_config import load_pip_settings, pip_config_files
from gpuenv.index.sources import PackageSettingsError, PackageSources, Source
from gpuenv.secret import Secret, redact_text, redact_url

if TYPE_CHECKING:
    from pathlib import Path


class Host:
    """A host in a folder: files, variables and flags in, sources out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home" / "dev"
        self.cwd = root / "project"
        self.environ = {"HOME": str(self.home)}
        for folder in (self.home, self.cwd, root / "venv"):
            folder.mkdir(parents=True)

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def folder(self, path: str) -> str:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        return str(self.root / path)

    def sources(self, flags: SourceFlags | None = None, **environ: str) -> PackageSources:
        return load_package_sources(
            {**self.environ, **environ},
            flags=flags,
            cwd=self.cwd,
            root=self.root,
            prefix=self.root / "venv",
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def test_a_host_without_settings_uses_pypi_and_says_so(host: Host) -> None:
    sources = host.sources()
    assert sources.index is not None
    assert (sources.index.location, sources.index.origin) == ("https://pypi.org/simple", "default")
    assert sources.extra_indexes == sources.find_links == sources.constraints == ()
    assert sources.certificate is None


def test_later_pip_files_win_and_sections_win_over_files(host: Host) -> None:
    host.write("etc/xdg/pip/pip.conf", "[install]\nindex-url = https://xdg.example/simple\n")
    host.write("etc/pip.conf", "[global]\nindex_url = https://etc.example/simple\n")
    user = host.write("home/dev/.config/pip/pip.conf", "[global]\nindex-url=https://u.example/s\n")
    sources = host.sources()
    # [install] wins over [global] although its file is the weakest.
    assert sources.index is not None
    assert sources.index.location == "https://xdg.example/simple"
    (host.root / "etc/xdg/pip/pip.conf").unlink()
    index = host.sources().index
    assert index is not None
    assert (index.location, index.origin) == ("https://u.example/s", f"{user} [global]")
    host.write("venv/pip.conf", "[global]\nindex-url = https://venv.example/simple\n")
    assert str(host.sources().index) == "https://venv.example/simple"
    assert str(host.sources(PIP_INDEX_URL="https://env.example/s").index) == "https://env.example/s"


def test_pip_config_file_replaces_the_users_and_devnull_silences_all(host: Host) -> None:
    host.write("etc/pip.conf", "[global]\nindex-url = https://etc.example/simple\n")
    host.write("home/dev/.pip/pip.conf", "[global]\nindex-url = https://legacy.example/simple\n")
    own = host.write("own.conf", "[global]\ntimeout = 7\n")
    sources = host.sources(PIP_CONFIG_FILE=str(own))
    assert str(sources.index) == "https://etc.example/simple"
    assert sources.timeout_s == 7
    assert str(host.sources(PIP_CONFIG_FILE="/dev/null").index) == "https://pypi.org/simple"
    # One that does not exist leaves the user's in force, as in pip.
    files = pip_config_files({**host.environ, "PIP_CONFIG_FILE": "/none"}, root=host.root)
    assert host.home / ".pip/pip.conf" in files


def test_lists_are_split_at_white_space_and_an_empty_variable_counts_as_none(host: Host) -> None:
    a, b = host.folder("a"), host.folder("b")
    host.write("etc/pip.conf", f"[global]\nfind-links =\n    {a}\n    {b}\n")
    assert [s.location for s in host.sources(PIP_FIND_LINKS="").find_links] == [a, b]
    assert [s.location for s in host.sources(PIP_FIND_LINKS=f"{b} {a}").find_links] == [b, a]


def test_places_are_told_apart_by_what_they_are(host: Host) -> None:
    wheels = host.folder("project/wheels")
    simple = host.folder("mirror/simple")
    sources = host.sources(
        PIP_FIND_LINKS="wheels https://links.example/torch.html",
        PIP_EXTRA_INDEX_URL=f"file://{simple} https://extra.example/simple",
    )
    assert [(s.kind, s.path and str(s.path)) for s in sources.find_links] == [
        ("local-dir", wheels),
        ("remote", None),
    ]
    assert [(s.kind, s.path and str(s.path)) for s in sources.extra_indexes] == [
        ("local-simple-index", simple),
        ("remote", None),
    ]
    assert [s.location for s in sources.local] == [wheels, simple]


def test_a_missing_folder_of_the_settings_warns_and_one_of_a_flag_fails(host: Host) -> None:
    sources = host.sources(PIP_FIND_LINKS="/gone/wheels")
    assert sources.find_links == ()
    assert sources.warnings == ("/gone/wheels (PIP_FIND_LINKS) does not exist and is left out",)
    with pytest.raises(PackageSettingsError, match="/gone/wheels") as caught:
        host.sources(SourceFlags(wheelhouse=("/gone/wheels",)))
    assert "--wheelhouse" in caught.value.why


def test_flags_win_and_wheelhouse_comes_first(host: Host) -> None:
    mine, theirs, ca = host.folder("mine"), host.folder("theirs"), host.write("ca.pem", "PEM")
    sources = host.sources(
        SourceFlags(
            index_url="https://flag.example/simple",
            extra_index_url=("https://flag-extra.example/simple",),
            torch_index_url="https://torch.example/whl",
            wheelhouse=(mine,),
            ca_bundle=str(ca),
        ),
        PIP_INDEX_URL="https://env.example/simple",
        PIP_EXTRA_INDEX_URL="https://env-extra.example/simple",
        PIP_FIND_LINKS=theirs,
        PIP_CERT="/not/looked/at.pem",
    )
    assert str(sources.index) == "https://flag.example/simple"
    assert [s.location for s in sources.extra_indexes] == [
        "https://flag-extra.example/simple",
        "https://env-extra.example/simple",
    ]
    assert [s.location for s in sources.find_links] == [mine, theirs]
    assert sources.certificate is not None
    assert (sources.certificate.value, sources.certificate.origin) == (ca, "--ca-bundle")
    assert str(sources.torch_source("cu128")) == "https://torch.example/whl/cu128"


def test_uv_settings_win_over_pip_field_by_field(host: Host) -> None:
    wheels = host.folder("wheels")
    host.write(
        "project/uv.toml",
        'index-strategy = "first-index"\n'
        '[[index]]\nname = "corp"\nurl = "https://corp.example/simple"\ndefault = true\n'
        '[[index]]\nname = "only-pinned"\nurl = "https://pinned.example/simple"\nexplicit = true\n',
    )
    sources = host.sources(
        PIP_INDEX_URL="https://pip.example/simple",
        PIP_FIND_LINKS=wheels,
        UV_INDEX="team=https://team.example/simple https://b.example/simple",
        UV_INDEX_TEAM_USERNAME="bob",
        UV_INDEX_TEAM_PASSWORD="s3cr3t/pw",
    )
    assert str(sources.index) == "https://corp.example/simple"
    assert [s.location for s in sources.extra_indexes] == [
        "https://***@team.example/simple",
        "https://b.example/simple",
    ]
    assert sources.extra_indexes[0].login == ("bob", Secret("s3cr3t/pw"))
    assert [s.location for s in sources.find_links] == [wheels]
    assert sources.index_strategy == "first-index"


def test_uv_variables_win_over_files_and_the_nearest_project_counts(host: Host) -> None:
    host.write("pyproject.toml", '[tool.uv]\nindex-url = "https://far.example/simple"\n')
    host.write("project/pyproject.toml", '[tool.uv.pip]\nindex-url = "https://near.example/s"\n')
    host.write("home/dev/.config/uv/uv.toml", 'find-links = ["wheels"]\n')
    host.folder("home/dev/.config/uv/wheels")
    sources = host.sources()
    assert str(sources.index) == "https://near.example/s"
    # Relative to the file that names it, not to where gpuenv runs.
    assert [s.path for s in sources.find_links] == [host.home / ".config/uv/wheels"]
    assert str(host.sources(UV_DEFAULT_INDEX="https://env.example/s").index) == (
        "https://env.example/s"
    )
    assert str(host.sources(UV_NO_CONFIG="1").index) == "https://pypi.org/simple"


def test_netrc_gives_the_login_of_its_host_alone(host: Host) -> None:
    host.write("home/dev/.netrc", "machine a.example login bob password t0k:en\n")
    sources = host.sources(
        PIP_INDEX_URL="https://a.example/simple", PIP_EXTRA_INDEX_URL="https://b.example/simple"
    )
    assert sources.index is not None
    assert sources.index.login == ("bob", Secret("t0k:en"))
    assert sources.index.url.reveal() == "https://bob:t0k%3Aen@a.example/simple"
    assert sources.extra_indexes[0].login is None


def test_no_index_leaves_the_folders_and_offline_the_local_ones(host: Host) -> None:
    wheels, simple = host.folder("wheels"), host.folder("simple")
    sources = host.sources(PIP_NO_INDEX="true", PIP_FIND_LINKS=wheels)
    assert sources.indexes == ()
    assert [s.location for s in sources.links] == [wheels]
    offline = host.sources(
        SourceFlags(offline=True),
        PIP_FIND_LINKS=f"{wheels} https://links.example/",
        PIP_EXTRA_INDEX_URL=f"file://{simple}",
    )
    assert [s.location for s in offline.indexes] == [simple]
    assert [s.location for s in offline.links] == [wheels]
    assert offline.remote == ()
    assert offline.torch_source("cu128") is None


def test_constraints_are_read_with_what_they_include(host: Host) -> None:
    path = host.write(
        "c.txt", "# cap\ntorch<=2.14.1  # disk\n-c more.txt\nnumpy==2.0 \\\n --hash=x:1\n"
    )
    host.write("more.txt", "--index-url https://no.example\n\nscipy<1.17\n")
    sources = host.sources(PIP_CONSTRAINT=str(path))
    assert [c.requirement for c in sources.constraints] == [
        "torch<=2.14.1",
        "scipy<1.17",
        "numpy==2.0",
    ]
    host.write("more.txt", "-c c.txt\n")
    with pytest.raises(PackageSettingsError, match="circle"):
        list(read_constraints(path, set_by="PIP_CONSTRAINT"))


def test_certificates_come_from_pip_then_the_usual_variables(host: Host) -> None:
    pip, env = host.write("pip.pem", ""), host.write("env.pem", "")
    sources = host.sources(PIP_CERT=str(pip), REQUESTS_CA_BUNDLE=str(env))
    assert sources.certificate is not None
    assert sources.certificate.value == pip
    fallback = host.sources(SSL_CERT_FILE=str(env)).certificate
    assert fallback is not None
    assert (fallback.value, fallback.origin) == (env, "SSL_CERT_FILE")
    with pytest.raises(PackageSettingsError, match="CA bundle"):
        host.sources(PIP_CERT="/gone.pem")


def test_a_proxy_of_pip_replaces_those_of_the_environment(host: Host) -> None:
    environ = {"https_proxy": "http://env.example:3128", "NO_PROXY": "localhost"}
    assert [s for s, _ in host.sources(**environ).proxies] == ["https", "no"]
    pip = host.sources(**environ, PIP_PROXY="http://u:pa55word@pip.example:8080")
    assert [s for s, _ in pip.proxies] == ["http", "https"]
    assert "pa55word" not in pip.redact("connecting with pa55word")


@pytest.mark.parametrize(
    ("pattern", "variant", "wanted"),
    [
        ("https://m.example/whl", "cu128", "https://m.example/whl/cu128"),
        ("https://m.example/whl/", "cpu", "https://m.example/whl/cpu"),
        ("https://m.example/{variant}/simple", "cu126", "https://m.example/cu126/simple"),
        ("https://m.example/whl/cu128", "cu128", "https://m.example/whl/cu128"),
        ("https://m.example/whl/cu128", "cu126", None),
    ],
)
def test_torch_index_serves_roots_patterns_and_single_variants(
    host: Host, pattern: str, variant: str, wanted: str | None
) -> None:
    source = host.sources(SourceFlags(torch_index_url=pattern)).torch_source(variant)
    assert (source and source.location) == wanted


@pytest.mark.parametrize(
    "address",
    [
        "ftp://a.example/x",
        "https://",
        "https://a.example:port/",
        "file://host/share",
        "https://a b/",
    ],
)
def test_an_address_that_cannot_be_used_names_where_it_was_set(host: Host, address: str) -> None:
    with pytest.raises(PackageSettingsError) as caught:
        host.sources(PIP_INDEX_URL=address)
    assert "PIP_INDEX_URL" in caught.value.why
    assert isinstance(caught.value, ConfigurationError)


def test_a_broken_file_is_named_and_its_line_is_not_quoted(host: Host) -> None:
    path = host.write("etc/pip.conf", "[global]\npa55\n")
    with pytest.raises(PackageSettingsError) as caught:
        host.sources()
    assert str(path) in caught.value.what
    assert "pa55" not in f"{caught.value.what}{caught.value.why}"
    path.write_text("")
    path = host.write("project/uv.toml", 'index-url = "https://bob:pa55@a.example\n')
    with pytest.raises(PackageSettingsError) as caught:
        host.sources()
    assert str(path) in caught.value.what
    assert "pa55" not in f"{caught.value.what}{caught.value.why}"
    path.write_text("find-links = 3\n")
    with pytest.raises(PackageSettingsError, match="find-links"):
        host.sources()


def test_a_switch_that_is_neither_yes_nor_no_is_refused(host: Host) -> None:
    with pytest.raises(PackageSettingsError, match="no-index"):
        host.sources(PIP_NO_INDEX="maybe")


def test_no_credential_shows_in_repr_text_or_json(host: Host) -> None:
    host.write("home/dev/.netrc", "machine n.example login netuser password n3tpass\n")
    sources = host.sources(
        SourceFlags(torch_index_url="https://tok_torch@t.example/whl"),
        PIP_INDEX_URL="https://bob:p%40ss-word@a.example/simple",
        PIP_EXTRA_INDEX_URL="https://n.example/simple https://b.example/s?token=qu3ry",
        PIP_PROXY="http://prox:pr0xypw@p.example",
    )
    planted = ["p%40ss-word", "p@ss-word", "tok_torch", "n3tpass", "qu3ry", "pr0xypw"]
    shown = repr(sources) + str(sources) + repr(dataclasses.asdict(sources))
    for text in planted:
        assert text not in shown
        assert text not in sources.redact(f"GET https://x/ failed near {text}!")
    with pytest.raises(TypeError):
        json.dumps(sources.torch_index.value)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://pypi.org/simple", "https://pypi.org/simple"),
        ("https://u:p@h.example:8443/s/", "https://***@h.example:8443/s/"),
        ("https://token@h.example/s?sig=1#f", "https://***@h.example/s?***"),
        ("/srv/wheels", "/srv/wheels"),
        ("https://[bad/", "***"),
    ],
)
def test_redacted_addresses_keep_what_helps(url: str, wanted: str) -> None:
    assert redact_url(url) == wanted


def test_addresses_within_text_are_redacted() -> None:
    text = "error: https://u:p@h.example/a failed, see 'https://ok.example/b'"
    assert redact_text(text) == "error: https://***@h.example/a failed, see 'https://ok.example/b'"


def test_secret_survives_formatting_and_comparison() -> None:
    secret = Secret("hunter2")
    assert f"{secret} {secret!r} {[secret]}".count("hunter2") == 0
    assert secret == Secret("hunter2")
    assert {secret, Secret("hunter2")} == {secret}
    assert secret != "hunter2"


def test_a_login_with_reserved_characters_survives_the_address() -> None:
    source = Source.remote("https://h.example/s", origin="x", login=("a@b", Secret("p:/?#")))
    assert source.login == ("a@b", Secret("p:/?#"))
    assert source.host == "h.example"
    assert source.bare_url.reveal() == "https://h.example/s"


def test_pip_values_ignore_case_and_underscores(host: Host) -> None:
    host.write("etc/pip.conf", "[global]\nFind_Links = /a\n")
    found = load_pip_settings(host.environ, root=host.root).one("find-links")
    assert found is not None
    assert found.value == "/a"
