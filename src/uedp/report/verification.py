"""The checks behind a report, made while it is written: ledger, certificate, model, signature."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from uedp.accounting.certificate import CERTIFICATE, Certificate, not_checked, verify
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import RUN_LEDGER
from uedp.accounting.model_files import model_files, refuse_other_files
from uedp.accounting.signature import check_signature
from uedp.errors import UserError
from uedp.report.run_record import RunRecord

Result = Literal["passed", "failed", "not checked"]
Status = Literal["proven", "unfinished", "none", "failed"]


@dataclass(frozen=True)
class Check:
    """One check and its result. `words` may be published; `detail` names files of the curator."""

    name: str
    result: Result
    words: str
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """What was checked of a run, and what follows for its guarantee.

    `certificate` is that of the run, only if no check failed. `status` is `proven` for a model with
    a guarantee, `none` for one without, `unfinished` where there is no model yet; where any check
    failed it is `failed`, and no number of the run may be called proven.
    """

    status: Status
    checks: tuple[Check, ...]
    certificate: Certificate | None = None
    left_open: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.result == "failed")

    @property
    def signed(self) -> bool:
        return any(
            check.name == SIGNATURE_CHECK and check.result == "passed" for check in self.checks
        )


LEDGER_CHECK, CERTIFICATE_CHECK = "Record of all rounds (ledger)", "Certificate"
MODEL_CHECK, SIGNATURE_CHECK = "Files of the model", "Signature"
CORPUS_CHECK = "Record of the corpus"


def verify_run(
    record: RunRecord, public_key: Path | None = None, corpus: Path | None = None
) -> Verification:
    """Verify a run as `verify` does, one check after the other.

    Guarantees:
      - `proven` only if `verify` accepts the folder, with the key and the corpus if they are given
      - a folder that should have a ledger or a certificate and has none is `failed`
    """
    folder = record.folder
    has_ledger, has_certificate = ((folder / name).is_file() for name in (RUN_LEDGER, CERTIFICATE))
    if not has_ledger and not has_certificate and record.without_noise:
        return Verification("none", (_missing_by_design(),))
    if not has_ledger and not has_certificate and not record.finished and not model_files(folder):
        return Verification("unfinished", (_not_begun(),))
    checks = [_ledger(folder)]
    if checks[0].result == "passed" and not _finished(record):
        return Verification("unfinished", (*checks, _no_model()))
    checks += [_certificate(folder), _model(record), _signature(record, public_key)]
    if corpus is not None:
        checks.append(_corpus(folder, corpus))
    if any(check.result == "failed" for check in checks):
        return Verification("failed", tuple(checks))
    certificate = verify(folder, public_key, corpus)
    left_open = not_checked(certificate, public_key is not None, corpus is not None)
    status: Status = "proven" if certificate.private else "none"
    return Verification(status, tuple(checks), certificate, left_open)


def _finished(record: RunRecord) -> bool:
    return record.finished or bool(record.certificate and record.certificate.files)


def _check(name: str, words: str, failed: str, check: Callable[[], object]) -> Check:
    try:
        check()
    except (UserError, OSError) as error:
        return Check(name, "failed", failed, " ".join(str(error).split()))
    return Check(name, "passed", words)


def _ledger(folder: Path) -> Check:
    return _check(
        LEDGER_CHECK,
        "Complete and unchanged: each entry is sealed with the ones before it.",
        "Missing, or changed after it was written.",
        lambda: read_chain(folder / RUN_LEDGER),
    )


def _certificate(folder: Path) -> Check:
    def recompute() -> None:
        try:
            verify(folder)
        except UserError as error:
            certificate = RunRecord.read(folder).certificate
            if certificate is None:
                raise
            try:
                refuse_other_files(folder, certificate.files)
            except UserError as other:
                if str(other) == str(error):  # the certificate is right; the files have their own
                    return
            raise

    return _check(
        CERTIFICATE_CHECK,
        "Every number on it was computed again from the ledger, and is the same.",
        "Missing, or does not say what follows from the ledger.",
        recompute,
    )


def _model(record: RunRecord) -> Check:
    certificate = record.certificate
    if certificate is None:
        return Check(MODEL_CHECK, "not checked", "There is no certificate to compare them with.")
    files = certificate.files
    return _check(
        MODEL_CHECK,
        f"All {len(files):,} have the certified SHA-256 hashes, and no other file is beside them.",
        "Not the files that were certified.",
        lambda: refuse_other_files(record.folder, files),
    )


def _signature(record: RunRecord, public_key: Path | None) -> Check:
    if public_key is None:
        words = (
            "There is one. It was not checked: no public key was given."
            if record.signed
            else "The certificate is not signed. Whoever could write this folder could have "
            "written all of it anew."
        )
        return Check(SIGNATURE_CHECK, "not checked", words)
    return _check(
        SIGNATURE_CHECK,
        "Made with the given key, over this very certificate.",
        "Missing, or not made with the given key over this certificate.",
        lambda: check_signature(record.folder / CERTIFICATE, public_key),
    )


def _corpus(folder: Path, corpus: Path) -> Check:
    return _check(
        CORPUS_CHECK,
        "Lists this run, and the total that the certificate states follows from it.",
        "Does not agree with the run: cut, replaced, or of another corpus.",
        lambda: verify(folder, corpus=corpus),
    )


def _no_model() -> Check:
    return Check(MODEL_CHECK, "not checked", "The run is not finished: there is no model yet.")


def _not_begun() -> Check:
    return Check(LEDGER_CHECK, "not checked", "No round has begun, and there is no model.")


def _missing_by_design() -> Check:
    words = "The run added no noise. It has no ledger and no certificate."
    return Check(LEDGER_CHECK, "not checked", words)
