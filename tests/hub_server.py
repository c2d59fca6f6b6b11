"""A server on loopback that speaks as much of the Hugging Face Hub's API as one dataset needs.

One public repository `datasets/lab/data` with one branch. It keeps every commit, takes small files
in the commit itself and large ones before it (LFS), lists trees in pages and answers with redirects
where the Hub does.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Mapping

import yaml

from tests.servers import LocalServer

REPOSITORY = "lab/data"
WRITE_TOKEN = "hf_write"
READ_TOKEN = "hf_read"
LFS_FROM = 1000
PAGE = 20


class HubServer(LocalServer):
    """Serves one repository in threads until the block ends.

    Attributes:
        url: Its address, without a slash at the end.
        commits: Every commit: its id, and the files as they were then.
        messages: The message of each commit but the first.
        large: SHA-256 of what was stored as large files, with the bytes.
        before_commit: Called with the number of commits before one is looked at; may raise to have
            the answer 500.
        requests: Method and path of each request so far.
    """

    def __init__(self):
        self.commits = {}
        self.messages = []
        self.large = {}
        self.before_commit = lambda _: None
        self.requests = []
        self.lock = threading.Lock()
        self.add_commit({".gitattributes": b""})
        super().__init__(_Handler)

    @property
    def newest(self):
        """Id of the newest commit."""
        return list(self.commits)[-1]

    @property
    def files(self):
        """The files of the newest commit."""
        return self.commits[self.newest]

    def add_commit(self, files):
        """Make a commit of these files, nothing else, and return its id."""
        number = len(self.commits)
        name = hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()
        self.commits[name] = files
        return name


@dataclasses.dataclass
class _Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _json(body, **headers):
    return _Answer(200, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})


def _error(status, message, code=""):
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return _Answer(status, json.dumps({"error": message}).encode(), headers)


def _validated(card):
    """Answer whether the header of a card is YAML."""
    _, header, _ = card.split("---\n", 2)
    try:
        yaml.safe_load(header)
    except yaml.YAMLError as error:
        return _Answer(400, json.dumps({"errors": [{"message": str(error)}]}).encode())
    return _json({"errors": [], "warnings": []})


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self):
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_):
        """Say nothing."""

    def _answer(self):
        body = self._body()
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        with self.owner.lock:
            self.owner.requests.append(f"{self.command} {url.path}")
        answer = self._route(url.path, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _route(self, path, body):
        if large := re.fullmatch(r"/large/([0-9a-f]{64})", path):  # no token is sent there
            return self._large(large[1], body)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", READ_TOKEN, WRITE_TOKEN):
            return _error(401, "Invalid credentials in Authorization header")
        if path == f"/datasets/{REPOSITORY}.git/info/lfs/objects/batch":
            return self._batch(json.loads(body)) if token == WRITE_TOKEN else _forbidden()
        if found := re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.+)", path):
            return self._resolve(found[1], urllib.parse.unquote(found[2]))
        if found := re.fullmatch(rf"/cache/{REPOSITORY}/([^/]+)/(.+)", path):
            return self._ranged(self.owner.commits[found[1]][urllib.parse.unquote(found[2])])
        if path == "/api/validate-yaml":
            return _validated(json.loads(body)["content"])
        found = re.fullmatch(rf"/api/datasets/{REPOSITORY}(?:/([a-z-]+)/([^/]+)(?:/(.+))?)?", path)
        if found is None:
            return _error(404, "Repository not found", "RepoNotFound")
        revision = self._revision(found[2] or "main")
        if revision is None:
            return _error(404, "Invalid rev id", "RevisionNotFound")
        if found[1] in ("preupload", "commit") and token != WRITE_TOKEN:
            return _forbidden()
        match found[1]:
            case None | "revision":
                return _json({"id": REPOSITORY, "sha": revision, "siblings": []})
            case "tree":
                return self._tree(revision, urllib.parse.unquote(found[3] or ""))
            case "paths-info":
                asked = urllib.parse.parse_qs(body.decode())["paths"]
                files = self.owner.commits[revision]
                return _json([self._entry(path, files[path]) for path in asked if path in files])
            case "preupload":
                return self._preupload(json.loads(body))
            case "commit":
                return self._commit([json.loads(line) for line in body.splitlines()])
        return _error(404, "no such endpoint")

    def _revision(self, text):
        text = urllib.parse.unquote(text)
        return self.owner.newest if text == "main" else text if text in self.owner.commits else None

    def _entry(self, path, data):
        entry = {"type": "file", "path": path, "size": len(data), "oid": _git_sum(data)}
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 in self.owner.large:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\n".encode()
            lfs = {"oid": sha256, "size": len(data), "pointerSize": len(pointer)}
            return {**entry, "oid": _git_sum(pointer), "lfs": lfs}
        return entry

    def _tree(self, revision, folder):
        files = self.owner.commits[revision]
        prefix = f"{folder}/" if folder else ""
        below = sorted(path for path in files if path.startswith(prefix))
        if folder and not below:
            return _error(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        entries = {}
        is_recursive = self.query.get("recursive", "").lower() == "true"
        for path in below:
            steps = path.removeprefix(prefix).split("/")
            for depth in range(1, len(steps)):
                inner = prefix + "/".join(steps[:depth])
                if is_recursive or depth == 1:
                    entries[inner] = {"type": "directory", "path": inner, "oid": "0" * 40, "size": 0}
            if is_recursive or len(steps) == 1:
                entries[path] = self._entry(path, files[path])
        start = int(self.query.get("cursor", 0))
        page = list(entries.values())[start : start + PAGE]
        if start + PAGE >= len(entries):
            return _json(page)
        query = urllib.parse.urlencode({**self.query, "cursor": start + PAGE})
        next_page = f"{self.owner.url}{urllib.parse.urlsplit(self.path).path}?{query}"
        return _json(page, Link=f'<{next_page}>; rel="next"')

    def _preupload(self, body):
        ignored = self.owner.files.get(".gitignore", b"").decode().split()
        return _json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= LFS_FROM else "regular",
                        "shouldIgnore": file["path"].endswith(tuple(ignored)) if ignored else False,
                    }
                    for file in body["files"]
                ]
            }
        )

    def _batch(self, body):
        objects = []
        for item in body["objects"]:
            upload = {"upload": {"href": f"{self.owner.url}/large/{item['oid']}"}}
            held = item["oid"] in self.owner.large
            objects.append({**item, **({} if held else {"actions": upload})})
        return _json({"transfer": "basic", "objects": objects})

    def _large(self, sha256, body):
        if self.command != "PUT":
            return self._ranged(self.owner.large[sha256])
        if hashlib.sha256(body).hexdigest() != sha256:
            return _error(400, "other bytes")
        with self.owner.lock:
            self.owner.large[sha256] = body
        return _Answer()

    def _commit(self, lines):
        owner = self.owner
        try:
            owner.before_commit(len(owner.messages))
        except Exception as error:  # noqa: BLE001 (a test wants this answer)
            return _error(500, str(error))
        with owner.lock:
            header = lines[0]["value"]
            if header.get("parentCommit", owner.newest) != owner.newest:
                return _error(412, "A commit has happened since. Please refresh and try again.")
            files = dict(owner.files)
            for line in lines[1:]:
                value = line["value"]
                match line["key"]:
                    case "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    case "lfsFile":
                        files[value["path"]] = owner.large[value["oid"]]
                    case "deletedFile":
                        if value["path"] not in files:
                            return _error(404, "A file with this name doesn't exist", "EntryNotFound")
                        del files[value["path"]]
                    case key:
                        return _error(400, f"what is {key}?")
            name = owner.add_commit(files)
            owner.messages.append(header["summary"])
        url = f"{owner.url}/datasets/{REPOSITORY}/commit/{name}"
        return _json({"success": True, "commitOid": name, "commitUrl": url, "hookOutput": ""})

    def _resolve(self, revision, path):
        commit = self._revision(revision)
        if commit is None:
            return _error(404, "Invalid rev id", "RevisionNotFound")
        data = self.owner.commits[commit].get(path)
        if data is None:
            return _error(404, "Entry not found", "EntryNotFound")
        sha256 = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        if sha256 in self.owner.large:
            place = f"{self.owner.url}/large/{sha256}"
            return _Answer(302, b"", {**headers, "Location": place, "X-Linked-ETag": f'"{sha256}"'})
        place = f"/cache/{REPOSITORY}/{commit}/{urllib.parse.quote(path)}"
        return _Answer(307, b"", {**headers, "Location": place, "ETag": f'"{_git_sum(data)}"'})

    def _ranged(self, data):
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{_git_sum(data)}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return _Answer(200, data, headers)
        start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if start >= len(data):
            return _Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        said = f"bytes {start}-{end}/{len(data)}"
        return _Answer(206, data[start : end + 1], {**headers, "Content-Range": said})


def _forbidden():
    return _error(403, "You don't have the rights to write here")


def _git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
