import json
import stat
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog import OrlogError
from orlog.errors import MissingExtraError, NotFoundError, SignatureError, StorageError
from orlog.manifests.signatures import (
    LARGEST_SIGNATURE,
    MOST_SIGNATURES,
    add_signature,
    check_signature,
    is_public_key,
    new_key,
    public_key,
    sign,
    signers,
)
from tests.levels import scaled

DATA = b'{"index_version": 1}\n'
WHERE = "https://data.example.org/index.json"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["signature_version", "signatures", "key", "signature", "other"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory):
    """Return a private key file."""
    path = tmp_path_factory.mktemp("keys") / "lab.pem"
    new_key(path)
    return path


def flip(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def altered(good, **fields):
    """Return a file with one signature, its fields or those around it changed."""
    body = json.loads(good)
    (one,) = body["signatures"]
    inner = {name: value for name, value in fields.items() if name in ("key", "signature", "comment")}
    outer = {name: value for name, value in fields.items() if name not in inner}
    return json.dumps({**body, "signatures": [{**one, **inner}], **outer}).encode()


def refusal(signature, *trusted, data=DATA, kind="index"):
    """Return the error of a check that must fail."""
    with pytest.raises(SignatureError) as caught:
        check_signature(data, kind, signature, trusted, WHERE)
    assert WHERE in str(caught.value)
    return caught.value


@pytest.mark.parametrize("kind", ["manifest", "index"])
def test_what_a_trusted_key_signed_is_accepted(kind, key_file):
    signature = sign(DATA, kind, key_file)
    other = f"ed25519:{'ab' * 32}"
    trusted = [other, public_key(key_file)]
    assert check_signature(DATA, kind, signature, trusted, WHERE) == public_key(key_file)
    assert signature == sign(DATA, kind, key_file)
    assert len(signature) < 400


def test_a_signature_is_of_the_documented_message(key_file):
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    digest = bytes.fromhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert json.loads(sign(b"abc", "manifest", key_file)) == {
        "signature_version": 1,
        "signatures": [
            {
                "key": f"ed25519:{key.public_key().public_bytes_raw().hex()}",
                "signature": key.sign(b"orlog manifest signature 1\n" + digest).hex(),
            }
        ],
    }


def test_the_signature_of_a_manifest_is_none_of_an_index(key_file):
    signature = sign(DATA, "manifest", key_file)
    assert "wrong signature" in str(refusal(signature, public_key(key_file), kind="index"))
    with pytest.raises(ValueError, match="a manifest or an index"):
        sign(DATA, "tag", key_file)  # that is what is tested


def test_an_unsigned_file_and_an_unknown_key_are_told_apart(key_file, tmp_path):
    known, unknown = public_key(key_file), new_key(tmp_path / "other.pem")
    unsigned = refusal(None, known)
    assert "not signed" in str(unsigned)
    assert (known in unsigned.expected, unsigned.found) == (True, "none")
    untrusted = refusal(sign(DATA, "index", tmp_path / "other.pem"), known)
    assert "not trusted" in str(untrusted)
    assert (known in untrusted.expected, untrusted.found) == (True, unknown)
    assert "not trusted" in str(refusal(sign(DATA, "index", key_file)))
    assert "there are none" in str(refusal(None))
    # Whoever forges the name of a trusted key has no signature of it.
    forged = altered(sign(DATA, "index", tmp_path / "other.pem"), key=known)
    assert "wrong signature" in str(refusal(forged, known))


def test_any_of_several_signatures_will_do(key_file, tmp_path):
    ours, other = public_key(key_file), new_key(tmp_path / "other.pem")
    old, new = sign(b"old", "index", key_file), sign(DATA, "index", key_file)
    both = add_signature(new, add_signature(old, None))
    assert signers(both) == {ours}
    for data in (b"old", DATA):
        assert check_signature(data, "index", both, [ours], WHERE) == ours
    assert "wrong signature" in str(refusal(both, ours, data=b"older"))
    assert "not trusted" in str(refusal(both, other))
    by_both = add_signature(sign(DATA, "index", tmp_path / "other.pem"), both)
    assert signers(by_both) == {ours, other}
    for key in (ours, other):
        assert check_signature(DATA, "index", by_both, [key], WHERE) == key
    # A right one by a key that is not trusted does not help a wrong one by a key that is.
    assert "wrong signature" in str(refusal(add_signature(old, sign(DATA, "index", tmp_path / "other.pem")), ours))


def test_signatures_add_up_to_a_bound_and_the_newest_stay(key_file):
    trusted = public_key(key_file)
    signature = None
    for number in range(MOST_SIGNATURES + 3):
        newest = sign(b"%d" % number, "index", key_file)
        signature = add_signature(newest, signature)
        assert add_signature(newest, signature) == signature
    assert signature is not None
    assert len(signature) <= LARGEST_SIGNATURE
    for number in range(MOST_SIGNATURES + 3):
        if number < 3:
            refusal(signature, trusted, data=b"%d" % number)
        else:
            assert check_signature(b"%d" % number, "index", signature, [trusted], WHERE) == trusted
    body = json.loads(signature)
    body["signatures"] += body["signatures"][:1]
    too_many = json.dumps(body, separators=(",", ":")).encode()
    assert "length <=" in str(refusal(too_many, trusted, data=b"5"))


def test_what_is_malformed_is_not_added_to(key_file):
    good = sign(DATA, "index", key_file)
    for wrong in (b"", b"{}", b"x" * 5000):
        assert add_signature(good, wrong) == good
        with pytest.raises(SignatureError):
            add_signature(wrong, good)
        with pytest.raises(SignatureError):
            signers(wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"comment": "x"}, "unknown field"),
        ({"more": "x"}, "unknown field"),
        ({"signatures": []}, "length >= 1"),
        ({"signatures": {}}, "signatures"),
        ({"signatures": None}, "signatures"),
        ({"signatures": [None]}, "signatures[0]"),
        ({"signature_version": 2}, "pip install --upgrade"),
        ({"signature_version": 0}, "signature_version"),
        ({"signature_version": True}, "signature_version"),
        ({"signature_version": 1.0}, "signature_version"),
        ({"key": "ed25519:" + "AB" * 32}, "key"),
        ({"key": "ed25519:" + "ab" * 32 + "\n"}, "key"),
        ({"key": "ab" * 32}, "key"),
        ({"key": None}, "key"),
        ({"signature": "ab" * 63}, "signature"),
        ({"signature": "AB" * 64}, "signature"),
        ({"signature": "é" * 128}, "signature"),
    ],
)
def test_a_malformed_field_is_refused(fields, message, key_file):
    signature = altered(sign(DATA, "index", key_file), **fields)
    assert message in str(refusal(signature, public_key(key_file)))


def test_missing_and_repeated_keys_and_excess_are_refused(key_file):
    good = sign(DATA, "index", key_file)
    for body, part in ((json.loads(good),) * 2, (json.loads(good)["signatures"][0], None)):
        for field in body:
            left = {key: value for key, value in body.items() if key != field}
            if part is None:
                left = {"signature_version": 1, "signatures": [left]}
            missing = refusal(json.dumps(left).encode(), public_key(key_file))
            assert f"missing required field `{field}`" in str(missing)
    repeated = good.replace(b"{", b'{"signature_version": 1,', 1)
    assert "repeated" in str(refusal(repeated, public_key(key_file)))
    padding = b" " * (LARGEST_SIGNATURE + 1 - len(good))
    assert "too large" in str(refusal(good + padding, public_key(key_file)))
    assert check_signature(DATA, "index", good + padding[1:], [public_key(key_file)], WHERE) == public_key(key_file)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[" * 4096, b"9" * 4096, b"null", b"NaN", b"{}"])
def test_what_is_no_signature_is_refused(text):
    refusal(text, f"ed25519:{'ab' * 32}")


def test_every_flipped_bit_of_the_signature_file_is_refused(key_file):
    good, trusted = sign(DATA, "index", key_file), public_key(key_file)
    for bit in range(len(good) * 8):
        refusal(flip(good, bit), trusted)


def test_every_flipped_bit_of_the_trusted_key_is_refused(key_file):
    good, trusted = sign(DATA, "index", key_file), public_key(key_file)
    raw = bytes.fromhex(trusted.partition(":")[2])
    for bit in range(256):
        wrong = f"ed25519:{flip(raw, bit).hex()}"
        refusal(good, wrong)
        # The same where the file names the wrong key too.
        refusal(altered(good, key=wrong), wrong)


@settings(max_examples=scaled(200), deadline=None)
@given(data=st.binary(min_size=1, max_size=200), place=st.integers(0))
def test_any_flipped_bit_of_the_data_is_refused(data, place, key_file):
    signature, trusted = sign(data, "manifest", key_file), public_key(key_file)
    assert check_signature(data, "manifest", signature, [trusted], WHERE) == trusted
    changed = flip(data, place % (len(data) * 8))
    refusal(signature, trusted, data=changed, kind="manifest")


@settings(max_examples=scaled(200), deadline=None)
@given(body=JSON)
def test_random_json_is_no_signature_and_no_key(body, tmp_path_factory):
    text = json.dumps(body).encode()
    refusal(text, f"ed25519:{'ab' * 32}")
    path = tmp_path_factory.mktemp("random") / "key.pem"
    path.write_bytes(text)
    with pytest.raises(SignatureError, match="expected an Ed25519 private key"):
        public_key(path)


def test_a_damaged_key_file_signs_nothing_that_is_trusted(key_file, tmp_path):
    good, trusted = key_file.read_bytes(), public_key(key_file)
    path = tmp_path / "damaged.pem"
    for bit in range(len(good) * 8):
        path.write_bytes(flip(good, bit))
        try:
            signature = sign(DATA, "index", path)
        except OrlogError:
            continue
        # Some line ends can be damaged and leave the same key; else it is another key.
        if public_key(path) != trusted:
            assert "not trusted" in str(refusal(signature, trusted))


def test_a_key_file_is_private_and_never_overwritten(tmp_path):
    path = tmp_path / "lab.pem"
    made = new_key(path)
    assert is_public_key(made)
    assert public_key(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(StorageError, match="never overwritten"):
        new_key(path)
    (tmp_path / "link.pem").symlink_to(tmp_path / "elsewhere.pem")
    with pytest.raises(StorageError, match="never overwritten"):
        new_key(tmp_path / "link.pem")
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere.pem").exists()
    with pytest.raises(StorageError, match="cannot write a new key"):
        new_key(tmp_path / "missing" / "lab.pem")
    assert new_key(tmp_path / "second.pem") != made


def test_what_is_no_key_file_is_refused(tmp_path):
    path = tmp_path / "key.pem"
    with pytest.raises(NotFoundError, match=r"orlog registry key .* --new"):
        public_key(path)
    with pytest.raises(StorageError, match="cannot read the key"):
        public_key(tmp_path)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key = ed25519.Ed25519PrivateKey.generate()
    large = rsa.generate_private_key(65537, 2048)
    for text in (
        key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"secret")),
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
        large.private_bytes(pem, pkcs8, serialization.NoEncryption()),
        b"",
        b"x" * 5000,
    ):
        path.write_bytes(text)
        with pytest.raises(SignatureError, match="expected an Ed25519 private key"):
            sign(DATA, "index", path)


def test_without_the_package_the_error_says_what_to_install(key_file, tmp_path, monkeypatch):
    signature, trusted = sign(DATA, "index", key_file), public_key(key_file)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    calls = [
        lambda: new_key(tmp_path / "new.pem"),
        lambda: public_key(key_file),
        lambda: check_signature(DATA, "index", signature, [trusted], WHERE),
    ]
    for call in calls:
        with pytest.raises(MissingExtraError, match=r"orlog\[sign\]") as caught:
            call()
        assert caught.value.install == "orlog[sign]"
    assert "not signed" in str(refusal(None, trusted))
