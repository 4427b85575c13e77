"""JupyterLab in a real browser, as a person uses it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.launch_fixtures import Desk

pytestmark = [pytest.mark.engine, pytest.mark.browser, pytest.mark.slow]

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 90_000
TRAINING = """\
import torch, matplotlib.pyplot as plt
torch.manual_seed(0)
x = torch.linspace(-1, 1, 64).unsqueeze(1)
y = 3 * x + 1
model = torch.nn.Linear(1, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
losses = []
for _ in range(60):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    losses.append(loss.item())
plt.plot(losses); plt.show()
print("converged", losses[-1] < 1e-2 < losses[0])"""


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Return where pictures go; TEST_SCREENSHOTS keeps them for a person to look at."""
    folder = Path(os.environ.get("TEST_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(screenshots: Path) -> Iterator[Any]:
    """Return a page of a fresh browser that reaches nothing but this host."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    if not CHROMIUM.exists():
        missing("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, ignore_https_errors=True
        )
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.outside = []
        page.on(
            "request",
            lambda request: (
                page.outside.append(request.url)
                if not re.match(r"https?://127\.0\.0\.1[:/]|data:|blob:", request.url)
                else None
            ),
        )
        yield page
        page.screenshot(path=screenshots / "last.png")
        browser.close()


def open_notebook(page: Any) -> None:
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    page.wait_for_selector(".jp-Notebook .cm-content")


def run_cell(page: Any, code: str) -> None:
    """Put code into the first cell and run it, as a person would paste it."""
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")


def kernel_is_idle(page: Any) -> None:
    """Wait until the kernel has connected and said so: what is run earlier is lost."""
    page.wait_for_selector("#jp-main-statusbar :text('| Idle')")


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_lab(
    desk: Desk, jupyter_image: str, page: Any, screenshots: Path
) -> None:
    url = desk.jupyter(jupyter_image)["url"]
    page.goto(re.sub(r"token=\w+", "token=" + "0" * 64, url))
    page.wait_for_selector("#password_input")
    assert "/login" in page.url
    page.screenshot(path=screenshots / "refused.png")
    page.fill("#password_input", "0" * 64)
    page.click("#login_submit")
    page.wait_for_selector(".message.error")
    page.goto(url)
    page.wait_for_selector(".jp-LauncherCard")
    assert "token=" not in page.url
    page.screenshot(path=screenshots / "launcher.png")
    assert page.outside == []


def test_a_cell_trains_with_torch_and_plots_and_the_kernel_restarts(
    desk: Desk, jupyter_image: str, page: Any, screenshots: Path
) -> None:
    page.goto(desk.jupyter(jupyter_image)["url"])
    open_notebook(page)
    kernel_is_idle(page)
    run_cell(page, TRAINING)
    page.wait_for_selector(".jp-OutputArea-output pre:has-text('converged True')")
    plot = page.locator(".jp-RenderedImage img").first
    plot.wait_for()
    assert plot.evaluate("image => image.naturalWidth") > 300
    page.screenshot(path=screenshots / "trained.png")

    page.get_by_role("menuitem", name="Kernel", exact=True).first.click()
    page.locator(".lm-Menu-itemLabel:text-is('Restart Kernel…')").click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    kernel_is_idle(page)
    run_cell(page, "print('losses' in globals())")
    page.wait_for_selector(".jp-OutputArea-output pre:has-text('False')")


def test_widgets_draw_and_follow_the_mouse(
    desk: Desk, jupyter_image: str, page: Any, screenshots: Path
) -> None:
    page.goto(desk.jupyter(jupyter_image)["url"])
    open_notebook(page)
    kernel_is_idle(page)
    run_cell(
        page,
        "import ipywidgets\n"
        "button = ipywidgets.Button(description='train')\n"
        "shown = ipywidgets.Label('not yet')\n"
        "button.on_click(lambda _: setattr(shown, 'value', 'step 1'))\n"
        "display(ipywidgets.HBox([button, shown]))",
    )
    page.locator("button.jupyter-button:has-text('train')").click()
    page.wait_for_selector(".widget-label:has-text('step 1')")
    page.screenshot(path=screenshots / "widgets.png")


def test_a_terminal_is_the_users_in_the_workspace_with_the_environments_python(
    desk: Desk, jupyter_image: str, page: Any, screenshots: Path
) -> None:
    page.goto(desk.jupyter(jupyter_image)["url"])
    page.locator(".jp-LauncherCard:has-text('Terminal')").first.click()
    page.wait_for_selector(".jp-Terminal .xterm-helper-textarea", state="attached")
    page.wait_for_selector(".jp-Terminal .xterm-rows :text('$'), .jp-Terminal .xterm-screen")
    page.locator(".jp-Terminal .xterm-screen").click()
    page.keyboard.type(
        "python -c 'import torch,getpass,os; "
        'open("seen.txt","w").write(f"{getpass.getuser()} {os.getcwd()} {torch.__version__}")\'\n'
    )
    seen = desk.workspace / "seen.txt"
    for _ in range(240):
        if seen.exists() and seen.read_text():
            break
        page.wait_for_timeout(250)
    user, folder, version = seen.read_text().split()
    assert (user, folder) == ("dev", "/workspace")
    assert version.startswith("2.13")
    assert seen.stat().st_uid == os.getuid()
    page.screenshot(path=screenshots / "terminal.png")


def test_an_open_tab_comes_back_after_stop_and_start(
    desk: Desk, jupyter_image: str, page: Any, screenshots: Path
) -> None:
    server = desk.jupyter(jupyter_image)
    page.goto(server["url"])
    open_notebook(page)
    kernel_is_idle(page)
    assert desk.run("stop", desk.name()).exit_code == 0
    (started,) = desk.run("start", desk.name(), "--json").data["started"]
    assert started["url"] == server["url"]
    page.goto(server["url"].partition("?")[0])  # the login of before still holds
    page.wait_for_selector(".jp-Notebook .cm-content")
    page.locator(".jp-Dialog:has-text('Select Kernel') .jp-mod-accept").click()  # the old one ended
    kernel_is_idle(page)
    run_cell(page, "print(6 * 7)")
    page.wait_for_selector(".jp-OutputArea-output pre:has-text('42')")
    page.screenshot(path=screenshots / "reconnected.png")


def test_the_status_bar_shows_memory(desk: Desk, jupyter_image: str, page: Any) -> None:
    page.goto(desk.jupyter(jupyter_image, "--memory", "2g")["url"])
    page.wait_for_selector(".jp-LauncherCard")
    page.wait_for_selector("#jp-main-statusbar :text('Mem:')")


def test_a_self_signed_server_works_over_tls(desk: Desk, jupyter_image: str, page: Any) -> None:
    server = desk.jupyter(jupyter_image, "--tls", "self-signed")
    assert server["url"].startswith("https://127.0.0.1:")
    page.goto(server["url"])
    page.wait_for_selector(".jp-LauncherCard")
    open_notebook(page)
    kernel_is_idle(page)
    run_cell(page, "print('over', 'TLS')")
    page.wait_for_selector(".jp-OutputArea-output pre:has-text('over TLS')")
