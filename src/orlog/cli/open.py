"""Looking at datasets, runs and reports in a browser."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import webbrowser
from pathlib import Path

from orlog.base.terminal import say
from orlog.cli.options import Imports, TrustEnvironment, command
from orlog.errors import needing


@command("orlog open pointmaze/umaze-v1", name="open")
def open_viewer(
    names: list[str],
    port: int = 0,
    browser: bool = True,
    trust_environment: TrustEnvironment = False,
    imports: Imports = None,  # noqa: ARG001 (its callback imports them)
) -> None:
    """Look at episodes, datasets, runs and reports in a page that this machine serves to itself.

    The page is on 127.0.0.1 only and asks nothing from anywhere else. Its address lets one browser in; the
    next address is printed when it was used. It reads what is named here and nothing besides. Ctrl-C ends it.
    On another machine: ssh -L 8000:127.0.0.1:PORT HOST, then the address with port 8000.

    Options:
        names (NAME_OR_FILE...): Datasets by name or path, files of views, folders of runs, reports; two datasets
            stand side by side.
        port (>= 0, default: a free one): Port on 127.0.0.1.
        browser: Open the page in the browser.
    """
    with needing("the viewer needs Starlette and uvicorn", "orlog[open]"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from orlog.viewer.server import Viewer, application, listen, serve
    from orlog.viewer.shown import open_all

    opened = open_all(names, trust_environment=trust_environment)
    viewer, listening = Viewer(opened), listen(port)
    guard = application(viewer)
    site = "http://{}:{}".format(*listening.getsockname()[:2])

    def print_next() -> None:
        with contextlib.suppress(OSError):  # nobody reads what is printed any more
            say(f"A browser entered. For another one:\n{site}{guard.invite(print_next)}")

    say(f"{site}{guard.invite(print_next)}")
    say(f"shows {', '.join(map(str, [*(shown.title for shown in opened.datasets), *opened.runs, *opened.reports]))}")
    say("Ctrl-C ends it.")
    with contextlib.ExitStack() as stack:
        stack.callback(viewer.close)
        if browser:
            page = _new_file()
            stack.callback(page.unlink, missing_ok=True)
            address = site + guard.invite(lambda: page.unlink(missing_ok=True))
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n', "utf-8")
            # In a thread, since a browser in the terminal would keep the server from answering it.
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        serve(guard, listening)


def _new_file() -> Path:
    """Return a new file that only the user can read, to lead a browser to the page.

    The address of the page is not given to the browser, since all users of a machine see its command line.
    """
    home = Path.home()  # browsers that are snaps see the home, but neither /tmp nor hidden folders
    in_home = Path("/snap").is_dir() and os.access(home, os.W_OK)
    file, path = tempfile.mkstemp(".html", "orlog-open-", home if in_home else None)
    os.close(file)
    return Path(path)
