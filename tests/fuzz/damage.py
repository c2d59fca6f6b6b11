"""Ways to damage a JSON document or any bytes, and to make the digest inside fit again.

A step is three numbers, so that Hypothesis and a fuzzer can both draw, shrink and repeat it.
"""

import contextlib
import copy
import hashlib
import json
import unicodedata
from typing import Any

from orlog.manifests.documents import canonical_json

# What is done to a document: (operation, where, with what), each number taken modulo the choices.

DEEP = 20_000


class Raw:
    """Text that stands in JSON as it is, though it may be none."""

    def __init__(self, text):
        self.text = text


class Pairs(list[list[Any]]):
    """The members of a JSON object, as [key, value]; keys may be repeated."""


HOSTILE = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 255, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64),
    *(10**400, -(2**63), 0.5, 1.0, -0.0, 1e16, 1e308, 5e-324),
    *(Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e400"), Raw("-1e400"), Raw("01")),
    *(Raw("9" * 5000), Raw("0." + "1" * 5000), Raw("1e-99999"), Raw("'x'"), Raw(""), Raw("\x00")),
    *("", " ", "x", ".", "..", "../..", "../../outside/secret", "/etc/passwd", "//x", "~/x", "C:x"),
    *("a/../../outside", "parts/1/../../x", "a\\..\\b", "file:///etc/passwd", "a//b", "a/", "./a"),
    *("\0", "a\nb", "a\x1b[2Jb", "\x7f", "\u202egnp.exe", "\u200b", "\ufeff", "\xa0", "\u2028"),
    *("\xe9", "e\u0301", "\u212b", "\ud800", "\udc80\ud800", "\U0010ffff", "\u0130", "\ufb01"),
    *("ZARR.JSON", "manifest.json", "MANIFEST.JSON", "manifest.json.sig", "zarr.json", "CON", "nul"),
    *("x" * 300, "x/" * 240 + "x", "\xe9" * 200, "x" * 100_001, "9" * 5000 + ".0.0", "%s%n{0}"),
    *("sha256:" + "0" * 64, "sha256:" + "0" * 63, "0" * 64, "ed25519:" + "0" * 64, "v1", "1.0.0"),
    *("inf", "-inf", "nan", "float64", "object", "O8", "zarr", "hdf5", "@values", "a@offsets"),
    *([], [[]], {}, {"a": {}}, [None], [0], [2**53] * 3, [1] * 70, [0, 2**53, 2**53], [""]),
    *(Raw("[" * DEEP + "]" * DEEP), Raw('{"a":' * DEEP + "1" + "}" * DEEP), Raw("[" * DEEP)),
    *(Raw("[" * 900 + "]" * 900), Raw('{"a":1,"a":2}'), [{"type": "Dict", "spaces": {}}] * 40),
    {"type": "Box", "shape": [2**12, 2**12], "dtype": "float64", "low": 0, "high": 1},
    {"type": "Text", "min_length": 0, "max_length": 2**60, "charset": "a"},
    {"type": "MultiDiscrete", "nvec": [2**62] * 9, "start": [2**62] * 9, "dtype": "int64"},
    {"type": "Sequence", "stack": True, "space": {"type": "Discrete", "n": 2, "start": 0}},
)
TEXTS = tuple(value for value in HOSTILE if isinstance(value, str))


def damaged(data, steps, seal=None):
    """Return a document after some steps: those on its JSON first, then those on its bytes.

    Where there is a `seal`, it makes the digest in the JSON fit again.
    """
    steps = [(operation % len(OPERATIONS), where, what) for operation, where, what in steps]
    on_json = [step for step in steps if step[0] < len(ON_JSON)]
    root = [from_text(data)] if on_json else []
    if root == [None]:  # not JSON at all
        steps = [(len(ON_JSON) + operation, where, what) for operation, where, what in steps]
        on_json = []
    if on_json:
        with contextlib.suppress(RecursionError, ValueError):  # too deep or long to be written
            data = _change_json(root, on_json, seal)
    for operation, where, what in steps:
        if operation >= len(ON_JSON):
            change = ON_BYTES[(operation - len(ON_JSON)) % len(ON_BYTES)]
            data = change(data, where % (len(data) + 1), what)
    return data


def _change_json(root, steps, seal):
    for operation, where, what in steps:
        places = list(_places(root))
        if not places:
            break
        ON_JSON[operation](*places[where % len(places)], what, places)
    body = root[0] if root else None
    return to_text(body if seal is None else seal(body)).encode("utf-8", "surrogatepass")


def _places(value):
    """Yield (list, position) of every value inside; members of objects are pairs in a list."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for position, item in enumerate(holder):
            inner = item[1] if isinstance(holder, Pairs) else item
            yield holder, position
            if isinstance(inner, list):
                waiting.append(inner)


def _hostile(what):
    return copy.deepcopy(HOSTILE[what % len(HOSTILE)])  # as later steps change it


def _get(holder, position):
    return holder[position][1] if isinstance(holder, Pairs) else holder[position]


def _put(holder, position, value):
    if isinstance(holder, Pairs):
        holder[position] = [holder[position][0], value]
    else:
        holder[position] = value


def _replace(holder, position, what, _):
    _put(holder, position, _hostile(what))


def _delete(holder, position, _, __):
    del holder[position]


def _repeat(holder, position, _, __):
    holder.insert(position, holder[position])


def _copy_from(holder, position, what, places):
    source, there = places[what % len(places)]
    if there < len(source):
        # As text, or a value could come to hold itself.
        text = to_text(_get(source, there))
        _put(holder, position, Raw(text))


def _rename(holder, position, what, _):
    text = TEXTS[what % len(TEXTS)]
    if isinstance(holder, Pairs):
        holder[position] = [text, holder[position][1]]
    else:
        holder[position] = text


def _add(holder, position, what, _):
    value = _hostile(what)
    holder.insert(position, ["x", value] if isinstance(holder, Pairs) else value)


def _bend(holder, position, what, _):
    """Change a value a little: another case, another form of Unicode, one more, another type."""
    value = _get(holder, position)
    if isinstance(value, str):
        changes = [
            value.upper(),
            value + TEXTS[what // 8 % len(TEXTS)],
            TEXTS[what // 8 % len(TEXTS)] + value,
            unicodedata.normalize("NFD", value + "\xe9"),
            value[:-1],
            value + "\n",
            [value],
            f"{value}/{TEXTS[what // 8 % len(TEXTS)]}",
        ]
    elif isinstance(value, int | float):
        changes = [value + 1, value - 1, -value, value * 2, float(value % 2**60), str(value), [value]]
    else:
        changes = [[value], None, Pairs([["a", value]]), to_text(value)]
    _put(holder, position, changes[what % len(changes)])


def _flip(data, where, what):
    if not data:
        return data
    where %= len(data)
    return data[:where] + bytes([data[where] ^ (1 << what % 8)]) + data[where + 1 :]


def _cut(data, where, _):
    return data[:where]


def _remove(data, where, what):
    return data[:where] + data[where + what % 64 :]


def _insert(data, where, what):
    value = _hostile(what)
    text = value if isinstance(value, str) else to_text(value)
    return data[:where] + text.encode("utf-8", "surrogatepass") + data[where:]


def _splice(data, where, what):
    there = what % (len(data) + 1)
    return data[:where] + data[there : there + 100] + data[where:]


def _encode(data, _, what):
    text = data.decode("utf-8", "replace")
    forms = ("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7")
    overlong = (data.replace(b"/", b"\xc0\xaf"), data.replace(b'"', b"\xc0\xa2"), b"\xff" + data)
    what %= len(forms) + len(overlong)
    return text.encode(forms[what]) if what < len(forms) else overlong[what - len(forms)]


ON_JSON = (*(_replace, _replace, _bend, _bend, _delete, _repeat, _copy_from, _rename, _add),)
ON_BYTES = (*(_flip, _cut, _remove, _insert, _splice, _encode),)
OPERATIONS = (*ON_JSON, *ON_BYTES)


def from_text(data):
    """Return JSON with its objects as pairs; None where it is none."""
    try:
        return json.loads(data, object_pairs_hook=lambda pairs: Pairs(map(list, pairs)))
    except (ValueError, RecursionError):
        return None


def to_text(value):
    """Return JSON, and what stands for what is none."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{to_text(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    return json.dumps(value)


def seal_manifest(body):
    """Return the JSON of a manifest with the digest that its content has, if it can have one."""
    if not isinstance(body, Pairs):
        return body
    rest = Pairs(pair for pair in body if pair[0] != "digest")
    try:
        text = json.dumps(json.loads(to_text(rest)), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return body
    return Pairs([["digest", f"sha256:{hashlib.sha256(text).hexdigest()}"], *rest])


def seal_view(body):
    """Return the JSON of a view with the digest that its content has, if it can have one."""
    if not isinstance(body, Pairs):
        return body
    rest = Pairs(pair for pair in body if pair[0] != "digest")
    try:
        digest = _view_digest(json.loads(to_text(rest)))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return body
    return Pairs([*rest, ["digest", digest]])


def _view_digest(body):
    if "dataset" in body:
        return str(body["dataset"].partition("@")[2])
    parents = [_view_digest(parent) for parent in body["parents"]]
    text = canonical_json({"operation": body["operation"], "parents": parents})
    return f"sha256:{hashlib.sha256(text).hexdigest()}"
