"""Configuration of the Jupyter server in a container; what differs is in ``settings.json``.

It reads no secret: the token or the password's hash is a file that only the server's user can read,
and ``gpuenv_jupyter`` compares against that file.
"""

import json
import os
import pwd
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:
    sys.path.insert(0, HERE)

with open(os.path.join(HERE, "settings.json"), encoding="utf-8") as _file:
    _settings = json.load(_file)


def _memory_limit():
    """Return the container's memory limit in bytes, 0 for none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                limit = int(file.read())
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:
            return limit
    return 0


c = get_config()  # noqa: F821 - given by traitlets

c.ServerApp.ip = "0.0.0.0"  # noqa: S104 - inside the container; the engine publishes on one address
c.ServerApp.port = _settings["port"]
c.ServerApp.port_retries = 0
c.ServerApp.root_dir = _settings["root_dir"]
c.ServerApp.default_url = "/lab"
c.ServerApp.open_browser = False
c.ServerApp.allow_root = os.getuid() == 0
c.ServerApp.allow_unauthenticated_access = False
c.ServerApp.allow_remote_access = _settings["remote_access"]
c.ServerApp.local_hostnames = ["localhost", *_settings["hostnames"]]
c.ServerApp.jpserver_extensions = {"gpuenv_jupyter": True, "jupyterlab": True}
c.ServerApp.identity_provider_class = "gpuenv_jupyter.FileIdentityProvider"
c.ServerApp.terminado_settings = {"shell_command": [pwd.getpwuid(os.getuid()).pw_shell or "sh"]}
if _settings["tls"]:
    c.ServerApp.certfile = os.path.join(HERE, "tls-cert.pem")
    c.ServerApp.keyfile = os.path.join(HERE, "tls-key.pem")

c.ServerApp.extra_template_paths = [HERE]
c.ServerApp.jinja_template_vars = {
    "gpuenv_access": _settings["secret_file"],
    "gpuenv_name": _settings["name"],
}

# No token of Jupyter's own making: none is generated, printed or written into its runtime files.
c.IdentityProvider.token = ""
c.FileIdentityProvider.secret_file = os.path.join(HERE, _settings["secret_file"])
c.FileIdentityProvider.secret_is_password_hash = _settings["secret_file"] == "password"
c.GpuenvIdle.stop_after_s = _settings["idle_stop_s"]

# Nothing asks the internet for news or newer versions, and nobody is asked whether it may:
# labconfig/page_config.json below this folder turns that question off.
os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
    [HERE, *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
)
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"

c.ResourceUseDisplay.track_cpu_percent = True
c.ResourceUseDisplay.mem_limit = _memory_limit()
