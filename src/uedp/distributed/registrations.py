"""The clients of a federation on disk, so that every run on it has the same incidence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from uedp.accounting.certificate import Certificate
from uedp.distributed import FEDERATION
from uedp.distributed.federation import ARRAYS, ClientRegistration, Federation
from uedp.errors import CheckFailedError, UserError
from uedp.files import fsync_file, make_private, partial_path, private_opener
from uedp.strict import parse_json


def save_registrations(folder: Path, registrations: Mapping[str, ClientRegistration]) -> None:
    """Write the registrations of a new federation, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    make_private(folder)
    arrays: dict[str, Any] = {}
    for number, client in enumerate(sorted(registrations)):
        one = registrations[client]
        arrays |= {f"{number}.{name}": getattr(one, name) for name in ARRAYS}
        detection = json.dumps(one.detection, sort_keys=True).encode()
        arrays[f"{number}.detection"] = np.frombuffer(detection, dtype=np.uint8)
    path = folder / FEDERATION
    partial = partial_path(path)
    with open(partial, "wb", opener=private_opener) as file:
        np.savez(file, **arrays)
        fsync_file(file)
    partial.replace(path)


def load_registrations(folder: Path) -> dict[str, ClientRegistration]:
    """The registrations of a federation by their names; none if it is new."""
    path = folder / FEDERATION
    if not path.is_file():
        if (folder / "corpus.json").exists():
            raise UserError(f"{folder}: is a corpus; name a folder of its own for the federation")
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {}
            for number in range(len(arrays.files) // (len(ARRAYS) + 1)):
                values = {name: arrays[f"{number}.{name}"] for name in ARRAYS}
                text = arrays[f"{number}.detection"].tobytes().decode()
                one = ClientRegistration(**values, detection=parse_json(text))
                one.check()
                found[one.name] = one
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise UserError(
            f"{path}: damaged ({error}); restore it from a copy: clients that register anew would "
            "be another federation, with a ledger of its own"
        ) from None
    return found


def refuse_other_federation(certificate: Certificate, folder: Path) -> None:
    """Refuse a federation whose users and entities are not those of a run."""
    joined = Federation.of(load_registrations(folder)).incidence
    if joined.digest != certificate.incidence.digest:
        raise CheckFailedError(f"{folder}: not the users and entities that the run was trained on")
