"""Signatures cover every byte; keys are private; replaced certificates lose theirs."""

import pytest

from tests.accounting.runs import SETUP, plan_of
from uedp.accounting.certificate import CERTIFICATE, issue, load_certificate, verify
from uedp.accounting.chain import Chain
from uedp.accounting.ledger import RUN_LEDGER, RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.proven import RotationProfile
from uedp.accounting.signature import SIGNATURE, check_signature, generate_key, sign_certificate
from uedp.errors import UserError


def test_a_signature_covers_every_byte(folder, keys):
    private, public = keys
    sign_certificate(folder / CERTIFICATE, private)
    assert verify(folder, public) == load_certificate(folder)
    path = folder / CERTIFICATE
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        with pytest.raises(UserError):
            check_signature(path, public)
    path.write_bytes(whole.replace(b'"created"', b' "created"'))  # which says the same
    verify(folder)
    with pytest.raises(UserError, match="not a signature of"):
        verify(folder, public)


def test_issuing_the_same_again_keeps_the_certificate_and_its_signature(folder, keys):
    private, public = keys
    sign_certificate(folder / CERTIFICATE, private)
    before = (folder / CERTIFICATE).read_bytes()
    assert issue(folder, pytest.fail) == load_certificate(folder)
    assert (folder / CERTIFICATE).read_bytes() == before
    verify(folder, public)


def test_a_signature_under_a_replaced_certificate_is_removed_with_a_warning(folder, keys):
    private, public = keys
    sign_certificate(folder / CERTIFICATE, private)
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append({"kind": "closed", "spent": 20})
    with pytest.warns(UserWarning, match=r"certificate\.sig: removed, .* sign that one"):
        issue(folder)
    with pytest.raises(UserError, match="no signature"):
        verify(folder, public)
    heard: list[str] = []
    issue(folder, heard.append)
    assert heard == []  # it is not signed any more


def test_a_certificate_that_was_made_anew_is_not_signed(folder, keys):
    """The chain has no key: whoever writes all of it anew is consistent, and caught here."""
    private, public = keys
    sign_certificate(folder / CERTIFICATE, private)
    (folder / RUN_LEDGER).unlink()
    kept = (folder / SIGNATURE).read_bytes()
    with RunLedger.open(folder, plan_of(RotationProfile(40.0, 0.5, 0.33), **SETUP)) as ledger:
        ledger.spend(20)
        ledger.record_saved(model_files(folder))
    issue(folder, str)
    verify(folder)
    with pytest.raises(UserError, match="no signature"):
        verify(folder, public)
    (folder / SIGNATURE).write_bytes(kept)
    with pytest.raises(UserError, match="not a signature of"):
        verify(folder, public)


def test_another_key_is_refused(folder, keys, tmp_path):
    private, public = keys
    sign_certificate(folder / CERTIFICATE, private)
    with pytest.raises(UserError, match="not a signature of"):
        verify(folder, generate_key(tmp_path / "other"))
    for damaged in (b"", b"%%%", b"AAAA"):
        (folder / SIGNATURE).write_bytes(damaged)
        with pytest.raises(UserError, match="not a signature of"):
            verify(folder, public)


def test_keys_are_their_owners_and_nothing_is_overwritten(tmp_path, keys):
    private, public = keys
    assert private.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in public.read_bytes()
    for name in ("key.pem", "other"):
        (tmp_path / "other.pub").write_text("mine")
        with pytest.raises(UserError, match="exists already"):
            generate_key(tmp_path / name)
    assert not (tmp_path / "other").exists()


def test_what_is_no_key_is_refused_in_a_line(folder, keys, tmp_path):
    private, public = keys
    (tmp_path / "no key").write_text("hello")
    for wrong, words in (
        (tmp_path / "no key", "not a private key"),
        (public, "not a private key"),
        (tmp_path / "nowhere", "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            sign_certificate(folder / CERTIFICATE, wrong)
    sign_certificate(folder / CERTIFICATE, private)
    for wrong, words in (
        (tmp_path / "no key", "not a public key"),
        (private, "not a public key"),
        (tmp_path / "nowhere", "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            verify(folder, wrong)
