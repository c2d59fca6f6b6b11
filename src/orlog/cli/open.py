"""Looking at datasets, runs and reports in a browser."""

from __future__ import annotations

import importlib.util
import threading
import webbrowser
from typing import Annotated

import typer

from orlog.base.terminal import say
from orlog.cli.options import Imports, TrustEnvironment, app
from orlog.errors import MissingExtraError
from orlog.manifests.names import counted

NEEDED = ("starlette", "uvicorn")


@app.command("open", epilog="Example: orlog open pointmaze/umaze-v1")
def open_viewer(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME_OR_FILE...",
            help="Datasets by name or path, files of views, folders of runs, reports; two datasets stand "
            "side by side.",
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1.", show_default="a free one")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    trust_environment: TrustEnvironment = False,
    imports: Imports = None,  # noqa: ARG001 (its callback imports them)
) -> None:
    """Look at episodes, datasets, runs and reports in a page that this machine serves to itself.

    The page is on 127.0.0.1 only, behind a token in its address, and asks nothing from anywhere else. It
    reads what is named here and nothing besides. Ctrl-C ends it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the viewer needs {' and '.join(missing)}, which "
            f"{'are' if len(missing) > 1 else 'is'} not installed",
            install="orlog[open]",
        )
    from orlog.viewer.guard import new_token
    from orlog.viewer.opened import count_runs, open_all
    from orlog.viewer.server import Viewer, application, listen, serve

    opened = open_all(names, trust_environment=trust_environment)
    viewer = Viewer(opened)
    token, listening = new_token(), listen(port)
    host, port = listening.getsockname()[:2]
    address = f"http://{host}:{port}/{token}/"
    counts = {str(folder): counted(count_runs(folder), "run") for folder in opened.runs}
    shown = [*(one.title for one in opened.datasets), *(f"{one} ({counts[one]})" for one in counts)]
    say(f"{address}\nshows {', '.join([*shown, *map(str, opened.reports)])}\nCtrl-C ends it.")
    if browser:
        # In a thread, since a browser in the terminal would keep the server from answering it.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    serve(application(viewer, token=token, port=port), listening)
    viewer.close()
