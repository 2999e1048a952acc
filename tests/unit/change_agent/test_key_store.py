"""Key stores made by keytool: keys as Java's KeyStore returns them, wrong passwords, and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from change_agent.errors import KeyStoreError
from change_agent.security.key_provider import KeyStoreKeyProvider
from change_agent.security.key_store import KeyStore

_FOLDER = Path(__file__).parents[2] / "golden" / "key_stores"
_STORE_PASSWORD = "store-secret"

# File, password of the key, and the key.
KEYS = {
    "keys.jceks": ("key-secret", "edde2c6146b4ef243b16d3da1a2ff9ab"),
    "keys.p12": (_STORE_PASSWORD, "0d80104d9ecab82e859358488c4142cd5f956da2e7eeadd6452c97e4a6b80d1f"),
    "legacy.p12": (_STORE_PASSWORD, "08b5645c94d76aed105d270918cce8188fe94f040057c00c"),
}
# Deriving a key of a PKCS #12 store takes 10 to 100 ms.
_STEPS = {"keys.jceks": 1, "keys.p12": 29, "legacy.p12": 29}
every_store = pytest.mark.parametrize("name", KEYS)


def _content(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


@every_store
@pytest.mark.parametrize("alias", ["testing:1", "Testing:1"])
def test_a_secret_key_is_read(name: str, alias: str) -> None:
    """Java stores aliases in lower case, and ignores case when it looks them up."""
    password, key = KEYS[name]
    assert KeyStore(_content(name), _STORE_PASSWORD).secret_key(alias, password).hex() == key


@every_store
def test_a_wrong_password_is_told_and_not_printed(name: str) -> None:
    """The password of the store or of the key is wrong. Neither the message nor its cause contains a password."""
    with pytest.raises(KeyStoreError, match="the password is wrong, or the file is damaged") as of_store:
        KeyStore(_content(name), "wr\u00f6ng-secret")
    with pytest.raises(KeyStoreError, match="the key's password is wrong") as of_key:
        KeyStore(_content(name), _STORE_PASSWORD).secret_key("testing:1", "wr\u00f6ng-secret")
    for caught in (of_store, of_key):
        assert "secret'" not in repr(caught.value.__cause__)
        assert "ng-secret" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@every_store
@pytest.mark.parametrize("alias", ["nobody", "other"])
def test_a_key_that_is_not_there_is_told(name: str, alias: str) -> None:
    """`other` is a key pair, not a secret key."""
    with pytest.raises(KeyStoreError, match=f"the key store holds no secret key '{alias}'"):
        KeyStore(_content(name), _STORE_PASSWORD).secret_key(alias, KEYS[name][0])


@every_store
def test_a_store_that_is_cut_is_refused(name: str) -> None:
    """The store is cut at every length."""
    content = _content(name)
    for cut in range(len(content)):
        with pytest.raises(KeyStoreError):
            KeyStore(content[:cut], _STORE_PASSWORD)


@every_store
def test_a_store_with_a_flipped_bit_is_refused_or_gives_the_key(name: str) -> None:
    """Both formats have a digest over the relevant bytes. A few other bytes have no meaning."""
    content, (password, key) = _content(name), KEYS[name]
    refused, places = 0, range(0, len(content), _STEPS[name])
    for at in places:
        flipped = bytearray(content)
        # The lowest bit only: a higher bit in the number of iterations would make the test slow.
        flipped[at] ^= 1
        try:
            assert KeyStore(bytes(flipped), _STORE_PASSWORD).secret_key("testing:1", password).hex() == key
        except KeyStoreError:
            refused += 1
    assert refused > len(places) * 0.9


def test_other_files_are_refused() -> None:
    """A JKS store cannot hold secret keys. Other content is not a key store."""
    with pytest.raises(KeyStoreError, match="a JKS key store cannot hold secret keys; use JCEKS or PKCS12"):
        KeyStore(_content("keys.jks"), _STORE_PASSWORD)
    for content in (b"", b"PK\3\4", b"-----BEGIN"):
        with pytest.raises(KeyStoreError, match="neither a JCEKS nor a PKCS12 key store"):
            KeyStore(content, _STORE_PASSWORD)


def test_a_provider_reads_the_file_when_a_key_is_asked_for(tmp_path: Path) -> None:
    """The provider does not read the file earlier. A failure names the file, and the next request tries again."""
    path = tmp_path / "store"
    provider = KeyStoreKeyProvider(path, SecretStr(_STORE_PASSWORD), None)
    with pytest.raises(KeyStoreError, match=r"store: the key store cannot be read \(No such file or directory\)"):
        provider.secret_key("testing:1")
    path.write_bytes(_content("keys.p12"))
    key = provider.secret_key("testing:1")
    assert key.hex() == KEYS["keys.p12"][1]
    path.unlink()
    assert provider.secret_key("testing:1") == key
    assert _STORE_PASSWORD not in f"{provider!r} {vars(provider)!r}"
