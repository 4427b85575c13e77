"""A Jupyter Server extension: who may come in, and when the server ends for want of use."""

import ctypes
import hashlib
import hmac
import os
import time
from typing import Optional

from jupyter_server.auth.identity import IdentityProvider
from jupyter_server.auth.security import passwd_check
from jupyter_server.utils import ensure_async
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Float, Unicode
from traitlets.config import SingletonConfigurable

_SHORTEST_SECRET = 32
_CHECK_EVERY_S = 15.0
_BUSY_CPU_SHARE = 0.05
_BUSY_GPU_PERCENT = 5


class FileIdentityProvider(IdentityProvider):
    """Compare with a token, or a password's hash, that stands in a file of the server's user.

    The file is looked at again whenever it changes, so a token can be replaced while kernels run.
    The login cookie's name follows from the secret: a cookie of an earlier one opens nothing.
    """

    secret_file = Unicode(help="The file with the token or the hash.").tag(config=True)
    secret_is_password_hash = Bool(False, help="It is an argon2 hash.").tag(config=True)
    need_token = False

    _seen = (0, 0)
    _secret = ""

    @property
    def auth_enabled(self) -> bool:
        """Always: a missing or short secret lets nobody in."""
        return True

    @property
    def secret(self) -> str:
        """The secret as the file has it now, empty when it cannot be one."""
        try:
            status = os.stat(self.secret_file)
            seen = (status.st_ctime_ns, status.st_ino)
            if seen != self._seen:
                with open(self.secret_file, encoding="utf-8") as file:
                    self._secret = file.read().strip()
                self._seen = seen
        except OSError as error:
            self.log.warning("gpuenv: cannot read %s: %s", self.secret_file, error.strerror)
            self._secret, self._seen = "", (0, 0)
        return self._secret if len(self._secret) >= _SHORTEST_SECRET else ""

    def accepts(self, given: Optional[str]) -> bool:
        """Say whether what was given is the token, or the password."""
        secret = self.secret
        if not given or not secret:
            return False
        if self.secret_is_password_hash:
            return bool(passwd_check(secret, given))
        return hmac.compare_digest(secret.encode(), given.encode("utf-8", "replace"))

    def get_cookie_name(self, handler) -> str:
        """Return the name of the login cookie, which another secret does not share."""
        digest = hashlib.sha256(b"gpuenv login cookie\0" + self.secret.encode()).hexdigest()
        return "gpuenv-login-" + digest[:24]

    async def get_user_token(self, handler):
        """Identify a request by its token; a password is for the login form alone."""
        if self.secret_is_password_hash or not self.accepts(self.get_token(handler)):
            return None
        return await ensure_async(self.get_user_cookie(handler)) or (
            self.generate_anonymous_user(handler)
        )

    def get_user_cookie(self, handler):
        """Identify a request by its login cookie; without a secret there is none to trust."""
        return super().get_user_cookie(handler) if self.secret else None

    def process_login_form(self, handler):
        """Let in whoever types the token or the password into the form."""
        if not self.accepts(handler.get_body_argument("password", default="")):
            return None
        return self.generate_anonymous_user(handler)


class GpuenvIdle(SingletonConfigurable):
    """End the server when kernels, terminals and GPUs have been idle for long enough.

    Busy is: a kernel that computes; something that came over a kernel's or a terminal's connection;
    any process but the server that uses a processor (a job in a terminal, a script in the
    background); a GPU that computes while a process in here holds it open. An open browser tab
    alone is idle.
    """

    stop_after_s = Float(0.0, help="Seconds without use; 0 never stops.").tag(config=True)

    def __init__(self, serverapp, **kwargs):
        super().__init__(parent=serverapp, **kwargs)
        self.serverapp = serverapp
        self.idle_since = time.monotonic()
        self._activity_seen = None
        self._cpu_seen = _cpu_seconds()
        self._checked = time.monotonic()

    def start(self):
        """Look from now on, in the server's own loop."""
        if self.stop_after_s > 0:
            pause_s = min(_CHECK_EVERY_S, self.stop_after_s / 4)
            PeriodicCallback(self.check, pause_s * 1000).start()
            self.log.info("gpuenv: stops after %g s without use", self.stop_after_s)

    def check(self):
        """Look once, and stop the server when it has been idle for long enough."""
        now = time.monotonic()
        reason = self.busy(now)
        if reason:
            self.idle_since = now
            self.log.debug("gpuenv: busy: %s", reason)
        elif now - self.idle_since >= self.stop_after_s:
            self.log.warning(
                "gpuenv: idle for %d s (kernels, terminals, GPU): stopping", now - self.idle_since
            )
            self.serverapp.stop()

    def busy(self, now: float) -> str:
        """Return what keeps it from being idle, or nothing."""
        kernels = self.serverapp.kernel_manager.list_kernels()
        if any(kernel.get("execution_state") == "busy" for kernel in kernels):
            return "a kernel computes"
        activity = [kernel.get("last_activity", "") for kernel in kernels]
        terminals = self.serverapp.web_app.settings.get("terminal_manager")
        if terminals is not None:
            activity += [terminal.get("last_activity", "") for terminal in terminals.list()]
        latest = max(activity, default="")
        newer = self._activity_seen is not None and latest > self._activity_seen
        self._activity_seen = latest
        cpu, elapsed = _cpu_seconds(), max(now - self._checked, 1e-3)
        used = sum(max(0.0, s - self._cpu_seen.get(pid, 0.0)) for pid, s in cpu.items())
        self._cpu_seen, self._checked = cpu, now
        if newer:
            return "a kernel or a terminal was used"
        if used / elapsed > _BUSY_CPU_SHARE:
            return "a process computes"
        return _gpu_in_use()


def _cpu_seconds():
    """Return the processor time of every other process of the container, by process id."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1" or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        seconds[int(name)] = (int(fields[11]) + int(fields[12])) / tick
    return seconds


def _gpu_in_use() -> str:
    """Return that a GPU computes while one of our processes holds it open, or nothing.

    Inside a container NVML does not tell whose the work on a GPU is; who holds its node open is the
    nearest that can be told. The driver's library is called directly, since no image must have a
    package for it.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""  # no GPU was given to this container
    if nvml.nvmlInit_v2() != 0:
        return ""
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ""
        ours = _open_nodes()
        for index in range(count.value):
            handle, minor, rates = ctypes.c_void_p(), ctypes.c_uint(), (ctypes.c_uint * 2)()
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
                and nvml.nvmlDeviceGetMinorNumber(handle, ctypes.byref(minor)) == 0
                and f"/dev/nvidia{minor.value}" in ours
                and (
                    # A GPU that is ours and does not tell (some MIG devices) may well compute.
                    nvml.nvmlDeviceGetUtilizationRates(handle, rates) != 0
                    or rates[0] > _BUSY_GPU_PERCENT
                )
            ):
                return f"GPU {index} computes"
    finally:
        nvml.nvmlShutdown()
    return ""


def _open_nodes():
    """Return the device nodes that other processes of the container hold open."""
    nodes = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            for handle in os.listdir(f"/proc/{name}/fd"):
                nodes.add(os.readlink(f"/proc/{name}/fd/{handle}"))
        except OSError:
            continue
    return nodes


def _jupyter_server_extension_points():
    return [{"module": "gpuenv_jupyter"}]


def _is_ours_to_say(record):
    """Drop Jupyter's hint how to get in: its addresses are the container's, not the user's."""
    return "To access the server" not in str(record.msg)


def _load_jupyter_server_extension(serverapp):
    serverapp.no_browser_open_file = True
    serverapp.log.addFilter(_is_ours_to_say)
    GpuenvIdle.instance(serverapp, config=serverapp.config).start()
