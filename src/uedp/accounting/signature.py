"""Signatures under certificates: proof that a certificate is the one its signatory saw.

Ed25519 over the bytes of `certificate.json` after a line that says what is signed. A certificate
names the last seal of its ledger and the hashes of the model's files, so that the signature covers
these too.
"""

import base64
import binascii
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uedp.errors import UserError
from uedp.files import private_opener, write_atomically

SIGNATURE = "certificate.sig"
_CONTEXT = b"uedp certificate, Ed25519, version 1\n"


def generate_key(path: Path) -> Path:
    """A new private key at `path`, readable by its owner only, and its public key beside it.

    Guarantees:
      - nothing is overwritten
    """
    if not path.name:
        raise UserError(f"{path}: not the name of a file; choose another name")
    public = path.with_name(f"{path.name}.pub")
    key = Ed25519PrivateKey.generate()
    private_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_text = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for target in (path, public):
        if os.path.lexists(target):
            raise UserError(f"{target}: exists already; choose another name")
    with open(path, "xb", opener=private_opener) as file:
        file.write(private_text)
    with public.open("xb") as file:
        file.write(public_text)
    return public


def sign_certificate(certificate: Path, key: Path) -> Path:
    """Write the signature beside a certificate."""
    with _reading_key(key, "private key without a password", "make a new key"):
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"{key}: not an Ed25519 key; make a new key")
    signature = private.sign(_CONTEXT + certificate.read_bytes())
    target = certificate.with_name(SIGNATURE)
    write_atomically(target, base64.b64encode(signature).decode() + "\n")
    return target


def check_signature(certificate: Path, public_key: Path) -> None:
    """Raise unless the certificate's signature was made with this key, over these very bytes."""
    key = read_public_key(public_key)
    path = certificate.with_name(SIGNATURE)
    if not path.is_file():
        raise UserError(f"{path}: no signature; the certificate has not been signed")
    try:
        signature = base64.b64decode(path.read_bytes().strip(), validate=True)
        key.verify(signature, _CONTEXT + certificate.read_bytes())
    except (binascii.Error, InvalidSignature):
        raise UserError(
            f"{path}: not a signature of {public_key} over this certificate; one of the three was "
            "changed, or it was signed with another key"
        ) from None


def read_public_key(path: Path) -> Ed25519PublicKey:
    with _reading_key(path, "public key", "name the .pub file of the key"):
        key = serialization.load_pem_public_key(path.read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(f"{path}: not an Ed25519 key; name the .pub file of the key")
    return key


@contextmanager
def _reading_key(path: Path, kind: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{path}: not a {kind}; {remedy}") from None
