"""Keys: ours are made, those of others are read with suspicion."""

from __future__ import annotations

import base64
import os
import re
import struct
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from gpuenv.containers.files import EnvironmentFiles
from gpuenv.errors import ConfigurationError
from gpuenv.ssh.environment import (
    admit,
    authorize,
    authorized_keys,
    make_client_key,
    make_host_key,
    revoke,
    revoked_keys,
    with_keys,
    without_keys,
)
from gpuenv.ssh.keys import (
    PublicKey,
    SshKeyError,
    load_key,
    make_key,
    parse_public_key,
    parse_public_keys,
)
from gpuenv.ssh.known_hosts import forget_host, pin_host_key
from gpuenv.ssh.user_keys import find_user_keys, read_named_key, read_public_keys
from gpuenv.state import make_private_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The fingerprint is what `ssh-keygen -lf` of OpenSSH 9.2 prints of this line.
KNOWN = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f alice@laptop"
)


def openssh(key: object) -> str:
    public = key.public_key()  # type: ignore[attr-defined] - any of cryptography's
    text: bytes = public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return text.decode()


def blob(*parts: bytes) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(p)) + p for p in parts)).decode()


SHORT_RSA = f"ssh-rsa {blob(b'ssh-rsa', bytes([1, 0, 1]), bytes([0, 255]) + bytes(127))}"


@pytest.fixture
def files(tmp_path: Path) -> EnvironmentFiles:
    return EnvironmentFiles.of("train", environ={"GPUENV_STATE_DIR": str(tmp_path / "state")})


# --- reading -------------------------------------------------------------------------------------


def test_a_key_is_read_with_its_comment_and_fingerprint() -> None:
    key = parse_public_key(KNOWN + "\n", origin="x")
    assert (key.type, key.comment) == ("ssh-ed25519", "alice@laptop")
    assert key.line == KNOWN
    assert key.fingerprint == "SHA256:ZkAslGjFiUHdGf/WUL8rQvkib4PTvQatUV0OUQSncCA"


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["nistp256", "nistp384", "nistp521", "rsa-2048"],
)
def test_good_keys_of_other_types_are_let_in(key: object) -> None:
    line = openssh(key)
    assert parse_public_key(line, origin="x").line == line


def test_a_hardware_key_is_let_in() -> None:
    line = f"sk-ssh-ed25519@openssh.com {blob(b'sk-ssh-ed25519@openssh.com', bytes(32), b'ssh:')}"
    assert parse_public_key(line, origin="x").line == line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("ssh-ed25519", "cut off"),
        ("ssh-ed25519 ", "cut off"),
        ("ssh-ed25519 AAAA", "cut off"),
        ("ssh-ed25519 !!!!", "cut off or changed"),
        (KNOWN[:60], "cut off"),
        ("hello world", "no public key"),
        ("AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f", "no public key"),
        ('command="rm -rf /" ' + KNOWN, "options such as command"),
        ("no-pty " + KNOWN, "options such as no-pty"),
        ("restrict,pty " + KNOWN, "options such as restrict,pty"),
        ("cert-authority " + KNOWN, "options such as cert-authority"),
        ('environment="LD_PRELOAD=/x" ' + KNOWN, "options such as environment"),
        ('from="10.0.0.0/8" ' + KNOWN, "options such as from"),
        (KNOWN.replace("ssh-ed25519", "ssh-rsa", 1), "contradicts itself"),
        ("ssh-ed25519-cert-v01@openssh.com AAAA x", "a certificate"),
        ("sk-ssh-ed25519-cert-v01@openssh.com AAAA x", "a certificate"),
        ("ssh-rsa-cert-v01@openssh.com AAAA x", "a certificate"),
        ("@cert-authority * " + KNOWN, "no public key"),
        (KNOWN + "\n" + KNOWN, "several lines"),
        (KNOWN + "\r" + KNOWN, "several lines"),
        (KNOWN.replace(" alice", "\0 alice"), "cut off or changed"),
        ("\0" + KNOWN, "no public key"),
        (KNOWN.replace("ssh-ed25519 ", "ssh-ed25519\u3000x ", 1), "cut off or changed"),
        (KNOWN.replace(" alice", "==== alice"), "cut off or changed"),
        ("\u017fsh-ed25519 AAAA", "no public key"),
        ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----", "RFC 4716"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA", "in PEM"),
        ("PuTTY-User-Key-File-3: ssh-ed25519\n", "is a private key"),
        ("x" * 1_000_000, "longer than"),
        ("ssh-dss AAAA x", "DSA keys are broken"),
        (SHORT_RSA, "1024 bits is too short"),
        (f"ssh-ed25519 {blob(b'ssh-ed25519', bytes(31))}", "lengths"),
        (f"ssh-ed25519 {blob(b'ssh-ed25519', bytes(32), b'more')}", "lengths"),
        ("ssh-ed25519 " + "A" * 20_000, "longer than"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n", "is a private key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "is a private key"),
        ("-----BEGIN PRIVATE KEY-----", "is a private key"),
    ],
)
def test_what_is_no_key_or_more_than_one_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(SshKeyError) as caught:
        parse_public_key(text, origin="the key")
    assert words in f"{caught.value.what} {caught.value.why}"
    assert caught.value.fix


@given(st.text())
def test_any_text_is_a_key_or_a_refusal(text: str) -> None:
    try:
        key = parse_public_key(text, origin="x")
    except SshKeyError:
        return
    assert key.line.isascii()


@given(st.text(max_size=300))
def test_a_comment_cannot_bring_a_second_line(comment: str) -> None:
    line = f"{KNOWN.rsplit(' ', 1)[0]} x{comment}"
    if {"\n", "\r"} & set(line.strip()):
        with pytest.raises(SshKeyError, match="more than a key"):
            parse_public_key(line, origin="x")
        return
    key = parse_public_key(line, origin="x")
    assert "\n" not in key.line
    assert "\r" not in key.line
    assert parse_public_key(key.line, origin="again").same_as(key)


def test_a_list_names_the_line_that_is_none_and_keeps_each_key_once() -> None:
    text = f"# mine\n\n{KNOWN}\r\n{KNOWN} again\n"
    assert [key.line for key in parse_public_keys(text, origin="x")] == [KNOWN]
    with pytest.raises(SshKeyError, match="x line 3"):
        parse_public_keys(f"{KNOWN}\n\nnonsense\n", origin="x")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_list_is_read_whatever_its_lines_end_with(end: str) -> None:
    text = "\ufeff" + end.join((KNOWN, "", "# a colleague", key(1).line, ""))
    assert [one.line for one in parse_public_keys(text, origin="x")] == [KNOWN, key(1).line]


def test_a_list_in_another_form_is_refused_as_a_whole() -> None:
    for text in (
        "---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n",
        f"{KNOWN}\n-----BEGIN PRIVATE KEY-----",
    ):
        with pytest.raises(SshKeyError, match="x is"):
            parse_public_keys(text, origin="x")


def test_ten_thousand_keys_are_read_each_once() -> None:
    lines = [
        f"ssh-ed25519 {blob(b'ssh-ed25519', number.to_bytes(32, 'big'))}"
        for number in range(10_000)
    ]
    read = parse_public_keys("\n".join((*lines, *reversed(lines[:100]))), origin="x")
    assert [key.line for key in read] == lines
    assert with_keys(read, read, revoked=frozenset()) == read
    with pytest.raises(SshKeyError, match="no list of keys"):
        parse_public_keys("\n".join(lines * 2), origin="x")


def test_one_key_has_one_form_so_that_revoking_it_is_enough() -> None:
    """The last character of a padded base64 text has bits that mean nothing."""
    good = openssh(ec.generate_private_key(ec.SECP256R1()))
    assert parse_public_key(good, origin="x")
    assert good.endswith("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = good.rstrip("=")[-1]
    other = (
        good.rstrip("=")[:-1] + alphabet[alphabet.index(last) + 1] + good[len(good.rstrip("=")) :]
    )
    assert base64.b64decode(other.split()[1]) == base64.b64decode(good.split()[1])
    with pytest.raises(SshKeyError, match="cut off or changed"):
        parse_public_key(other, origin="x")


def test_a_key_of_ours_comes_back_and_its_private_half_does_not_show() -> None:
    pair = make_key("gpuenv test")
    again = load_key(pair.private.reveal(), origin="x")
    assert again.public.same_as(pair.public)
    assert pair.public.comment == "gpuenv test"
    assert "PRIVATE KEY-----\n" in pair.private.reveal()
    assert "PRIVATE" not in repr(pair)


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN OPENSSH PRIVATE KEY-----\nAA==\n"])
def test_a_damaged_private_key_is_refused(text: str) -> None:
    with pytest.raises(SshKeyError, match="is not a private key"):
        load_key(text, origin="host key")


# --- the user's own ------------------------------------------------------------------------------


def test_public_keys_without_their_private_half_are_somebody_elses(tmp_path: Path) -> None:
    mine, colleague = make_key("me"), make_key("colleague")
    (tmp_path / "id_work").write_text(mine.private.reveal())
    (tmp_path / "id_work.pub").write_text(mine.public.line + "\n")
    (tmp_path / "colleague.pub").write_text(colleague.public.line + "\n")
    (tmp_path / "id_old").write_text("x")
    (tmp_path / "id_old.pub").write_text("ssh-dss AAAA old\n")
    found = find_user_keys(tmp_path, {})
    assert [key.public.line for key in found.keys] == [mine.public.line]
    assert found.keys[0].identity == tmp_path / "id_work"
    assert len(found.passed_over) == 1
    assert "DSA" in found.passed_over[0]
    assert find_user_keys(tmp_path / "none", {}).keys == ()


def test_a_named_key_may_be_the_private_or_the_public_file(tmp_path: Path) -> None:
    pair = make_key("me")
    private = tmp_path / "id"
    private.write_text(pair.private.reveal())
    assert read_named_key(private).public.same_as(pair.public), "from the private file itself"
    (tmp_path / "id.pub").write_text(pair.public.line)
    assert read_named_key(private).public.comment == "me"
    assert read_named_key(tmp_path / "id.pub").identity == private
    private.unlink()
    assert read_named_key(tmp_path / "id.pub").identity == tmp_path / "id.pub", "the agent has it"


def test_a_named_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "huge").write_bytes(b"x" * (1024 * 1024 + 1))
    for name, words in (("text", "no key that"), ("huge", "cannot read"), ("gone", "cannot read")):
        with pytest.raises(SshKeyError, match=words):
            read_named_key(tmp_path / name)
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(SshKeyError, match="has no key"):
        read_public_keys(tmp_path / "empty")


# --- those of an environment ---------------------------------------------------------------------


def key(number: int) -> PublicKey:
    line = f"ssh-ed25519 {blob(b'ssh-ed25519', bytes([number]) * 32)} key-{number}"
    return parse_public_key(line, origin="x")


def test_a_host_key_is_made_once_and_is_private(files: EnvironmentFiles) -> None:
    first = make_host_key(files, "train")
    assert make_host_key(files, "train").public.same_as(first.public)
    assert files.host_key_path.stat().st_mode & 0o777 == 0o600
    public = files.host_key_path.with_name("ssh_host_ed25519_key.pub")
    assert public.read_text() == first.public.line + "\n"
    assert not make_client_key(files, "train").public.same_as(first.public)


def test_a_damaged_host_key_is_not_replaced_in_silence(files: EnvironmentFiles) -> None:
    files.write(files.host_key_path, "damaged")
    with pytest.raises(SshKeyError):
        make_host_key(files, "train")
    assert files.read(files.host_key_path) == "damaged"


def test_a_revoked_key_stays_out_until_it_is_added_again(files: EnvironmentFiles) -> None:
    assert admit(files, (key(1), key(2))) == (key(1), key(2))
    assert revoke(files, key(1).fingerprint) == (key(2),)
    assert admit(files, (key(1), key(2), key(3))) == (key(2), key(3)), "as every start does"
    assert authorize(files, (key(1),)) == (key(2), key(3), key(1))
    assert admit(files, (key(1),)) == authorized_keys(files)


def test_keys_are_revoked_by_fingerprint_comment_or_as_they_stand() -> None:
    known = (key(1), key(2))
    words = (key(1).fingerprint, "key-1", key(1).blob, key(1).line, f"{key(1).line} and more")
    for word in words:
        assert without_keys(known, word) == (key(2),)
    for word in ("", "key", "key-3", "SHA256:"):
        with pytest.raises(SshKeyError, match="may log in"):
            without_keys(known, word)


def test_a_comment_that_is_empty_revokes_nobody() -> None:
    bare = parse_public_key(" ".join(key(1).line.split()[:2]), origin="x")
    with pytest.raises(SshKeyError, match="may log in"):
        without_keys((bare,), "")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
    ids=["no text", "a folder", "a pipe"],
)
@pytest.mark.parametrize(
    "read",
    [
        authorized_keys,
        revoked_keys,
        EnvironmentFiles.token,
        lambda files: make_host_key(files, "train"),
        lambda files: make_client_key(files, "train"),
    ],
    ids=["authorized", "revoked", "token", "host key", "client key"],
)
def test_a_file_of_ours_that_became_something_else_is_named(
    files: EnvironmentFiles,
    spoil: Callable[[Path], object],
    read: Callable[[EnvironmentFiles], object],
) -> None:
    make_private_dir(files.folder)
    for path in (
        files.authorized_keys_path,
        files.revoked_keys_path,
        files.token_path,
        files.host_key_path,
        files.client_key_path,
    ):
        spoil(path)
    with pytest.raises(ConfigurationError, match=f"cannot read {re.escape(str(files.folder))}"):
        read(files)


def test_known_hosts_keeps_lines_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(b"\xff\xfe somebody's\n")
    pin_host_key(path, "gpuenv-train", key(1))
    forget_host(path, "gpuenv-other")
    assert path.read_bytes() == (
        b"\xff\xfe somebody's\n" + f"gpuenv-train {key(1).type} {key(1).blob}\n".encode()
    )


def test_known_hosts_that_are_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot use") as told:
        pin_host_key(tmp_path, "gpuenv-train", key(1))
    assert told.value.why == "Is a directory"
