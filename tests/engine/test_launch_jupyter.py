"""``gpuenv jupyter`` and life with what runs, on a real engine with a real server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import pytest

from gpuenv.containers.identity import VOLUME
from tests.conftest import missing

if TYPE_CHECKING:
    from gpuenv.engine.protocol import ContainerEngine
    from tests.launch_fixtures import Desk

pytestmark = [pytest.mark.engine, pytest.mark.slow]

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is tested here
TOKEN_FILE = "/etc/gpuenv/jupyter/token"


@pytest.fixture(autouse=True)
def _no_volumes_left(no_new_volumes: None) -> None:
    del no_new_volumes


def ask(
    server: dict[str, Any],
    path: str = "/api/status",
    *,
    token: str | None = None,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 20,
) -> tuple[int, bytes, http.client.HTTPMessage]:
    parts = urlsplit(server["url"])
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server["host_port"], timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", server["host_port"], timeout=timeout_s)
    with contextlib.closing(connection):
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"token {token}"
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def code(server: dict[str, Any], path: str = "/api/status", **options: Any) -> int:
    return ask(server, path, **options)[0]


def inside(engine: ContainerEngine, server: dict[str, Any], script: str, **options: Any) -> str:
    done = engine.exec(server["id"], ("sh", "-c", script), **options)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


# --- start, find again, differ -------------------------------------------------------------------


def test_a_second_call_finds_the_running_one_and_different_wishes_are_told(
    desk: Desk, jupyter_image: str
) -> None:
    first = desk.jupyter(jupyter_image)
    assert not first["found"]
    assert code(first, token=first["token"]) == 200
    again = desk.run("jupyter", "--json", "--name", desk.name()).data
    assert again["found"]
    assert (again["url"], again["id"]) == (first["url"], first["id"])
    other = desk.run("jupyter", "--json", "--name", desk.name(), "--memory", "3g", "--gpus", "none")
    assert (other.exit_code, other.slug) == (2, "environment-differs")
    assert "--memory 3g is asked for; there it is not set" in other.envelope["errors"][0]["why"]
    assert code(first, token=first["token"]) == 200

    anew = desk.run(
        "jupyter", "--json", "--name", desk.name(), "--image", jupyter_image,
        "--memory", "3g", "--replace",
    ).data  # fmt: skip
    assert anew["id"] != first["id"]
    assert anew["token"] == first["token"]
    assert len(desk.environments()) == 1


def test_the_default_name_is_the_folders(desk: Desk, jupyter_image: str) -> None:
    words = ("jupyter", "--json", "--image", jupyter_image)
    first = desk.run(*words).data
    assert first["name"].startswith("work-")
    assert desk.run(*words).data["id"] == first["id"]


def test_a_taken_port_gives_the_next_one_and_says_so(desk: Desk, jupyter_image: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = desk.run(
            "jupyter", "--json", "--image", jupyter_image, "--name", desk.name(),
            "--port", str(port),
        )  # fmt: skip
    assert done.data["host_port"] > port
    assert f"port {port} is taken" in done.stderr


def test_two_starts_at_once_are_one_environment(desk: Desk, jupyter_image: str) -> None:
    words = ("jupyter", "--json", "--image", jupyter_image, "--name", desk.name())
    processes = [desk.popen(*words) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=240)[0])["data"] for process in processes]
    assert answers[0]["url"] == answers[1]["url"]
    assert sorted(answer["found"] for answer in answers) == [False, True]
    assert len(desk.environments()) == 1


def test_an_image_without_jupyter_is_told_and_leaves_nothing(desk: Desk, base_image: str) -> None:
    done = desk.run("jupyter", "--json", "--image", base_image, "--name", desk.name())
    assert (done.exit_code, done.slug) == (6, "no-jupyter")
    assert desk.environments() == ()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [1.0, 2.0, 3.0, 4.0])
def test_an_interrupted_start_leaves_nothing(
    desk: Desk, jupyter_image: str, delay_s: float, sent: signal.Signals
) -> None:
    process = desk.popen("jupyter", "--image", jupyter_image, "--name", desk.name())
    time.sleep(delay_s)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it was ready by then")
    assert process.returncode in {130, -sent}, (out, err)
    assert desk.environments() == ()


# --- who may come in -----------------------------------------------------------------------------


def test_a_wide_address_needs_tls_or_an_explicit_insecure(desk: Desk, jupyter_image: str) -> None:
    words = ("jupyter", "--json", "--image", jupyter_image, "--name", desk.name())
    refused = desk.run(*words, "--bind", EVERYWHERE)
    assert (refused.exit_code, refused.slug) == (2, "unsafe-bind")
    allowed = desk.run(*words, "--bind", EVERYWHERE, "--insecure")
    assert allowed.data["host_port"]
    assert any("without TLS" in warning for warning in allowed.envelope["warnings"])


def test_tls_with_a_certificate_of_ones_own(desk: Desk, jupyter_image: str, tmp_path: Path) -> None:
    from datetime import datetime, timezone

    from gpuenv.containers.tls import make_certificate

    made = make_certificate(("127.0.0.1",), now=datetime.now(timezone.utc))
    (tmp_path / "c.pem").write_text(made.chain)
    (tmp_path / "k.pem").write_text(made.key)
    server = desk.jupyter(jupyter_image, "--tls", f"{tmp_path}/c.pem,{tmp_path}/k.pem")
    assert server["url"].startswith("https://")
    assert server["tls_fingerprint"] == made.fingerprint
    assert code(server, token=server["token"]) == 200
    assert code(server) == 403
    key = inside(desk.engine, server, "stat -c '%a %U' /etc/gpuenv/jupyter/tls-key.pem")
    assert key == "400 dev\n"


def test_a_password_in_place_of_the_token(desk: Desk, jupyter_image: str) -> None:
    words = ("jupyter", "--json", "--image", jupyter_image, "--name", desk.name(), "--password")
    assert desk.run(*words, stdin=b"short\n").slug == "configuration"
    server = desk.run(*words, stdin=b"correct horse\n").data
    assert server["token"] is None
    assert "token" not in server["url"]

    def log_in(password: str) -> tuple[int, str]:
        _, _, first = ask(server, "/login")
        xsrf = re.search(r"_xsrf=([^;]+)", str(first)).group(1)  # type: ignore[union-attr]
        status, _, headers = ask(
            server, "/login", method="POST",
            headers={
                "Cookie": f"_xsrf={xsrf}", "Content-Type": "application/x-www-form-urlencoded",
            },
            body=urlencode({"password": password, "_xsrf": xsrf}).encode(),
        )  # fmt: skip
        cookie = re.search(r"gpuenv-login-\w+=[^;]+", str(headers))
        return status, cookie.group(0) if cookie else ""

    assert log_in("correct horse battery")[0] == 401
    status, cookie = log_in("correct horse")
    assert status == 302
    assert code(server, headers={"Cookie": cookie}) == 200
    everywhere = "".join(p.read_text() for p in desk.state.rglob("*") if p.is_file())
    assert "correct horse" not in everywhere
    assert "argon2:$argon2id$" in everywhere


def test_rotation_refuses_the_old_token_and_logins_made_with_it(
    desk: Desk, jupyter_image: str
) -> None:
    server = desk.jupyter(jupyter_image)
    old = server["token"]
    _, _, headers = ask(server, f"/lab?token={old}")
    cookie = re.search(r"gpuenv-login-\w+=[^;]+", str(headers)).group(0)  # type: ignore[union-attr]
    assert code(server, headers={"Cookie": cookie}) == 200
    status, _, _ = ask(server, "/api/kernels", method="POST", token=old)
    assert status == 201

    new = desk.run("jupyter", "--json", "--name", desk.name(), "--rotate").data["token"]
    assert new != old
    assert code(server, token=old) == 403
    assert code(server, headers={"Cookie": cookie}) == 403
    name, _, value = cookie.partition("=")
    for renamed in ("gpuenv-login-" + "0" * 24, name):
        assert code(server, headers={"Cookie": f"{renamed}={value}"}) == 403
    status, body, _ = ask(server, "/api/kernels", token=new)
    assert (status, len(json.loads(body))) == (200, 1)  # the kernel lives on
    shown = desk.run("jupyter", "--json", "--url", desk.name()).data["token"]
    assert shown == new


@pytest.mark.parametrize("content", ["", "\n", "short"], ids=["empty", "blank", "too short"])
def test_an_empty_or_broken_token_lets_nobody_in(
    desk: Desk, jupyter_image: str, content: str
) -> None:
    server = desk.jupyter(jupyter_image)
    inside(desk.engine, server, f"chmod 600 {TOKEN_FILE}; printf '{content}' > {TOKEN_FILE}")
    for given in (server["token"], content.strip(), ""):
        assert code(server, token=given) == 403
    assert code(server) == 403
    assert code(server, "/lab?token=") == 302


# --- the token is nowhere else -------------------------------------------------------------------


def test_the_token_is_in_one_file_on_each_side_and_nowhere_else(
    desk: Desk, jupyter_image: str, engine: ContainerEngine
) -> None:
    server = desk.jupyter(jupyter_image, "-v")
    token = server["token"]
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    # Use it as browsers and scripts do, and let a kernel and a terminal run.
    ask(server, f"/lab?token={token}")
    ask(server, "/api/kernels", method="POST", token=token)
    ask(server, "/api/terminals", method="POST", token=token)
    desk.run("ps", "--json")
    desk.run("top", "--once", "--json")
    desk.run("logs", desk.name())

    # Inside: every file but the image's own, every process, every log.
    script = (
        "import os, sys\n"
        "needle = sys.stdin.read().strip().encode()\n"
        "found = []\n"
        "for top in ('/etc', '/home', '/tmp', '/run', '/var', '/root', '/workspace', '/dev/shm'):\n"
        "    for folder, _, names in os.walk(top):\n"
        "        for name in names:\n"
        "            path = os.path.join(folder, name)\n"
        "            try:\n"
        "                if os.path.isfile(path) and needle in open(path, 'rb').read():\n"
        "                    found.append(path)\n"
        "            except OSError: pass\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for part in ('cmdline', 'environ'):\n"
        "        try:\n"
        "            if needle in open(f'/proc/{pid}/{part}', 'rb').read():\n"
        "                found.append(f'{pid} {part}')\n"
        "        except OSError: pass\n"
        "print(*found, sep='\\n')\n"
    )
    searched = engine.exec(server["id"], ("python", "-c", script), stdin=token.encode())
    assert searched.stdout.decode().split("\n") == [TOKEN_FILE, ""], searched.stderr
    assert inside(engine, server, f"stat -c '%a %U' {TOKEN_FILE}") == "400 dev\n"

    # The engine: inspect, logs, image, history.
    logs = b"".join(chunk.data for chunk in engine.logs(server["id"])).decode()
    assert "token=[secret]" in logs or "token=" not in logs
    inspect = repr(engine.container(server["id"])) + json.dumps(
        desk.run("ps", "--json", "-v").envelope
    )
    history = repr(engine.image_history(jupyter_image)) + repr(engine.image(jupyter_image))
    for text in (logs, inspect, history, raw_inspect(engine, server["id"])):
        assert token not in text

    # This side: our files with their modes, and the processes of the host.
    found = [path for path in desk.root.rglob("*") if path.is_file() and token in path.read_text()]
    assert found == [desk.state / "environments" / desk.name() / "jupyter-token"]
    for path in desk.state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert token not in host_processes()


def raw_inspect(engine: ContainerEngine, container: str) -> str:
    """Return what the engine itself tells whoever may ask it, as docker inspect does."""
    ask_engine: Any = engine
    return json.dumps(ask_engine._json("GET", f"/containers/{container}/json", about="container"))


def host_processes() -> str:
    texts = []
    for path in Path("/proc").glob("[0-9]*/*"):
        if path.name in {"cmdline", "environ"}:
            with contextlib.suppress(OSError):
                texts.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(texts)


# --- every route wants the token -----------------------------------------------------------------

ROUTES = """\
import json, sys, re
sys.argv = ["jupyter-server"]
from jupyter_server.serverapp import ServerApp
app = ServerApp()
app.initialize(["--config=/etc/gpuenv/jupyter/jupyter_server_config.py", "--ServerApp.port=0"],
               new_httpserver=False)
from tornado.websocket import WebSocketHandler
routes = []
def walk(rules):
    for rule in rules:
        target = rule.target
        if hasattr(target, "rules"):
            walk(target.rules)
            continue
        regex = getattr(rule.matcher, "regex", None)
        if regex is None:
            continue
        methods = [m for m in ("GET","HEAD","POST","DELETE","PATCH","PUT")
                   if getattr(target, m.lower(), None) is not None]
        routes.append((regex.pattern, methods, target.__module__ + "." + target.__name__,
                       isinstance(target, type) and issubclass(target, WebSocketHandler)))
walk(app.web_app.default_router.rules)
walk(app.web_app.wildcard_router.rules)
print("ROUTES" + json.dumps(routes))
"""

# What a browser needs to show the login page, and the server's version.
OPEN = re.compile(
    r"/login|/logout|/static/.*|/favicon\.ico|/static/favicon.*|/robots\.txt|/api/?|/custom/.*"
    r"|/(?:static/)?logo.*"
)


def sample(pattern: str) -> str:
    """Return a text that a route's pattern matches: the shortest, with an x for any character."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:
        import sre_parse as parser  # Python 3.10

    def one(name: str, value: Any) -> str:
        if name == "IN":
            kind, first = value[0]
            return one(str(kind), first)
        if name == "RANGE":
            return chr(value[0])
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            return text(value[2]) * value[0]
        nested = {"SUBPATTERN": lambda: value[3], "BRANCH": lambda: value[1][0]}
        if name in nested:
            return text(nested[name]())
        plain = {"LITERAL": lambda: chr(value), "AT": lambda: "", "ASSERT_NOT": lambda: ""}
        return plain.get(name, lambda: "x")()

    def text(items: Any) -> str:
        return "".join(one(str(operation), value) for operation, value in items)

    return text(parser.parse(pattern))


def test_every_route_of_the_server_refuses_without_the_token(
    desk: Desk, jupyter_image: str, engine: ContainerEngine
) -> None:
    server = desk.jupyter(jupyter_image)
    listed = engine.exec(
        server["id"], ("python", "-c", ROUTES), env={"JUPYTER_RUNTIME_DIR": "/tmp/routes"}
    )
    line = next(line for line in listed.stdout.decode().splitlines() if line.startswith("ROUTES"))
    routes = json.loads(line.removeprefix("ROUTES"))
    assert len(routes) > 60
    # Known doors must be among them, else the list is not the server's.
    handlers = {handler.rpartition(".")[2] for _, _, handler, _ in routes}
    assert {"ContentsHandler", "KernelWebsocketHandler", "TermSocket", "LabHandler"} <= handlers
    wrong = []
    tried = 0
    for pattern, methods, handler, websocket in routes:
        path = sample(pattern) or "/"
        if not path.startswith("/") or OPEN.fullmatch(path):
            continue
        if websocket:
            tried += 1
            status, _, headers = ask(server, path, headers=websocket_headers(server))
            to_login = status == 302 and headers["Location"].startswith("/login")
            if not (to_login or status in {401, 403, 404}):
                wrong.append((path, "WEBSOCKET", status, handler))
            continue
        for method in methods:
            tried += 1
            try:
                status, body, headers = ask(server, path, method=method, body=b"{}", timeout_s=10)
            except TimeoutError:
                # jupyterlab_server's own fault: its refusal breaks off while it is written, so
                # whoever has no token gets nothing at all.
                if not handler.endswith(".LicensesHandler"):
                    wrong.append((path, method, "no answer", handler))
                continue
            to_login = status == 302 and "/login" in headers.get("Location", "")
            moved = status in {301, 302, 308} and not headers.get("Location", "").startswith("http")
            if not (to_login or moved or status in {401, 403, 404, 405}):
                wrong.append((path, method, status, handler, body[:80]))
    assert wrong == []
    assert tried > 100


def websocket_headers(server: dict[str, Any]) -> dict[str, str]:
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
        "Origin": f"http://127.0.0.1:{server['host_port']}",
    }


def test_websockets_of_a_live_kernel_and_terminal_refuse_without_the_token(
    desk: Desk, jupyter_image: str
) -> None:
    server = desk.jupyter(jupyter_image)
    kernel = json.loads(ask(server, "/api/kernels", method="POST", token=server["token"])[1])
    terminal = json.loads(ask(server, "/api/terminals", method="POST", token=server["token"])[1])
    for path in (
        f"/api/kernels/{kernel['id']}/channels",
        f"/terminals/websocket/{terminal['name']}",
        "/api/events/subscribe",
    ):
        for token in (None, "0" * 64):
            status, _, headers = ask(server, path, headers=websocket_headers(server), token=token)
            to_login = status == 302 and headers["Location"].startswith("/login")
            assert status == 403 or to_login, path
        status = upgrade_status(server, path, server["token"])
        assert status == 101, path


def upgrade_status(server: dict[str, Any], path: str, token: str) -> int:
    with socket.create_connection(("127.0.0.1", server["host_port"]), timeout=20) as connection:
        headers = {**websocket_headers(server), "Authorization": f"token {token}"}
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server['host_port']}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(connection.recv(64).split()[1])


def test_a_foreign_host_name_is_refused(desk: Desk, jupyter_image: str) -> None:
    """A page of an attacker whose name points to 127.0.0.1 must not speak with the server."""
    server = desk.jupyter(jupyter_image)
    status = code(server, token=server["token"], headers={"Host": "evil.example:8888"})
    assert status == 403


# --- hardening -----------------------------------------------------------------------------------


def test_the_container_is_hardened(desk: Desk, jupyter_image: str, engine: ContainerEngine) -> None:
    server = desk.jupyter(jupyter_image)
    inspected = json.loads(raw_inspect(engine, server["id"]))
    host = inspected["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert "no-new-privileges" in host["SecurityOpt"][0]
    assert host["Init"]
    assert host["PortBindings"]["8888/tcp"][0]["HostIp"] == "127.0.0.1"
    assert not any("docker.sock" in str(mount) for mount in inspected["Mounts"])
    assert inspected["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
    address = outer_address()
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection((address, server["host_port"]), timeout=5)


def outer_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


# --- life ----------------------------------------------------------------------------------------


def test_stop_and_start_keep_port_and_token(desk: Desk, jupyter_image: str) -> None:
    server = desk.jupyter(jupyter_image)
    assert desk.run("stop", desk.name(), "--json").exit_code == 0
    stopped = desk.run("jupyter", "--json", "--url", desk.name())
    assert (stopped.exit_code, stopped.slug) == (2, "container-not-running")
    (started,) = desk.run("start", desk.name(), "--json").data["started"]
    assert started["url"] == server["url"]
    assert code(server, token=server["token"]) == 200


def test_a_call_for_a_stopped_one_goes_on_with_it(desk: Desk, jupyter_image: str) -> None:
    server = desk.jupyter(jupyter_image)
    inside(desk.engine, server, "touch ~/kept")
    desk.engine.stop(server["id"])
    again = desk.jupyter(jupyter_image)
    assert again["id"] == server["id"]
    assert inside(desk.engine, again, "ls ~/kept")


def test_a_port_taken_while_it_was_stopped_is_told(desk: Desk, jupyter_image: str) -> None:
    server = desk.jupyter(jupyter_image)
    desk.engine.stop(server["id"])
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", server["host_port"]))
        holder.listen()
        refused = desk.run("start", desk.name(), "--json")
    assert (refused.exit_code, refused.slug) == (6, "port-taken")
    assert desk.run("start", desk.name(), "--json").exit_code == 0


def test_what_was_removed_or_killed_behind_our_back_is_understood(
    desk: Desk, jupyter_image: str, engine: ContainerEngine
) -> None:
    server = desk.jupyter(jupyter_image)
    engine.signal(server["id"], "SIGKILL")
    engine.wait(server["id"], timeout_s=30)
    (listed,) = desk.listed()
    assert (listed["state"], listed["exit_code"]) == ("exited", 137)
    revived = desk.jupyter(jupyter_image)
    assert (revived["id"], revived["url"]) == (server["id"], server["url"])
    engine.remove(server["id"], force=True)
    assert desk.listed() == []
    gone = desk.run("stop", desk.name(), "--json")
    assert (gone.exit_code, gone.slug) == (2, "environment-not-found")
    anew = desk.jupyter(jupyter_image)
    assert anew["token"] == server["token"]
    assert anew["id"] != server["id"]


def test_a_lost_state_folder_is_made_again_from_the_container(
    desk: Desk, jupyter_image: str
) -> None:
    server = desk.jupyter(jupyter_image)
    (desk.state / "environments" / desk.name() / "jupyter-token").unlink()
    assert desk.run("jupyter", "--json", "--url", desk.name()).data["url"] == server["url"]


def test_ps_tells_age_and_idleness_and_rm_forgets_the_token(desk: Desk, jupyter_image: str) -> None:
    server = desk.jupyter(jupyter_image)
    (listed,) = desk.listed()
    assert listed["name"] == desk.name()
    assert listed["url"] == server["url"].partition("?")[0]
    assert 0 <= listed["idle_s"] <= listed["age_s"] < 240
    assert listed["kernels"] == 0
    unasked = desk.run("rm", desk.name(), "--json")
    assert (unasked.exit_code, unasked.slug) == (2, "usage")
    assert desk.run("rm", desk.name(), "--yes", "--volumes", "--json").exit_code == 0
    assert desk.environments() == ()
    assert not (desk.state / "environments" / desk.name()).exists()


def test_top_shows_what_each_uses(desk: Desk, jupyter_image: str, engine: ContainerEngine) -> None:
    server = desk.jupyter(jupyter_image, "--memory", "1g")
    busy = "import time; e = time.time() + 30\nwhile time.time() < e: pass"
    with contextlib.closing(engine.exec_attached(server["id"], ("python", "-c", busy))):
        top = desk.run("top", "--once", "--json").data
    (use,) = [one for one in top["containers"] if one["name"] == desk.name()]
    assert use["cpu_percent"] > 20
    assert 20 << 20 < use["memory_bytes"] < 1 << 30
    assert use["memory_limit_bytes"] == 1 << 30
    assert use["network_rx_bytes"] > 0
    if not top["gpus"]:
        assert top["gpus_found_via"]
        assert use["gpu_use"] == []


# --- idle stop -----------------------------------------------------------------------------------


def wait_until_stopped(engine: ContainerEngine, container: str, *, timeout_s: float) -> float:
    """Return after how many seconds a container ended."""
    begun = time.monotonic()
    engine.wait(container, timeout_s=timeout_s)
    return time.monotonic() - begun


def test_an_idle_server_stops_with_exit_code_0(
    desk: Desk, jupyter_image: str, engine: ContainerEngine
) -> None:
    server = desk.jupyter(jupyter_image, "--idle-stop", "6s")
    # An idle kernel and an idle terminal do not keep it.
    ask(server, "/api/kernels", method="POST", token=server["token"])
    ask(server, "/api/terminals", method="POST", token=server["token"])
    assert engine.wait(server["id"], timeout_s=90).exit_code == 0
    logs = b"".join(chunk.data for chunk in engine.logs(server["id"], tail=50)).decode()
    assert "idle for" in logs
    assert desk.run("start", desk.name(), "--json").exit_code == 0


def test_a_background_job_keeps_it_until_it_ends(
    desk: Desk, jupyter_image: str, engine: ContainerEngine
) -> None:
    server = desk.jupyter(jupyter_image, "--idle-stop", "5s")
    job = "import time; e = time.time() + 25\nwhile time.time() < e: pass"
    with contextlib.closing(engine.exec_attached(server["id"], ("python", "-c", job))):
        assert wait_until_stopped(engine, server["id"], timeout_s=120) > 25


# --- faults --------------------------------------------------------------------------------------


def test_a_full_workspace_is_an_error_in_the_notebook_and_nothing_else(
    desk: Desk, jupyter_image: str
) -> None:
    if os.geteuid() != 0:
        missing("root, to mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(desk.workspace)], check=False
    )
    if mounted.returncode:
        missing("the right to mount")
    try:
        server = desk.jupyter(jupyter_image)
        body = {"type": "file", "format": "text", "content": "x" * 200_000}
        status, _, _ = ask(
            server, "/api/contents/big.txt", method="PUT", token=server["token"],
            body=json.dumps(body).encode(),
        )  # fmt: skip
        assert status == 500
        assert code(server, token=server["token"]) == 200
        assert desk.run("rm", desk.name(), "--yes").exit_code == 0
    finally:
        subprocess.run(["umount", str(desk.workspace)], check=False)


def test_twenty_starts_and_stops_leave_nothing(
    desk: Desk, jupyter_image: str, engine: ContainerEngine, tmp_path: Path
) -> None:
    def left() -> dict[str, set[str]]:
        return {
            "containers": {e.container.id for e in desk.environments()},
            "volumes": {volume.name for volume in engine.volumes(labels={VOLUME: None})},
            "files": {str(path) for path in desk.root.rglob("*") if ".cache" not in str(path)},
            "temporary": {str(path) for path in tmp_path.rglob("*")},
        }

    desk.jupyter(jupyter_image)  # the cache volumes are made once and kept on purpose
    desk.run("rm", desk.name(), "--yes")
    before = left()
    for round_ in range(20):
        server = desk.jupyter(jupyter_image)
        if round_ % 2:
            desk.run("stop", desk.name())
            desk.run("start", desk.name())
        assert code(server, token=server["token"]) == 200
        assert desk.run("rm", desk.name(), "--yes").exit_code == 0
    assert left() == before
