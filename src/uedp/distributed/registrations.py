"""The clients of a federation on disk, so that every run on it has the same incidence."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from uedp.distributed.federation import ARRAYS, ClientRegistration
from uedp.errors import UserError
from uedp.files import fsync_file, make_private, partial_path, private_opener
from uedp.strict import parse_json

FILE = "federation.npz"


def save_registrations(folder: Path, registrations: Mapping[str, ClientRegistration]) -> None:
    """Write the registrations of a new federation, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    make_private(folder)
    arrays = {}
    for number, digest in enumerate(sorted(registrations)):
        one = registrations[digest]
        arrays |= {f"{number}.{name}": getattr(one, name) for name in ARRAYS}
        detection = json.dumps(one.detection, sort_keys=True).encode()
        arrays[f"{number}.detection"] = np.frombuffer(detection, dtype=np.uint8)
    path = folder / FILE
    partial = partial_path(path)
    with open(partial, "wb", opener=private_opener) as file:
        np.savez(file, **arrays)
        fsync_file(file)
    partial.replace(path)


def load_registrations(folder: Path) -> dict[str, ClientRegistration]:
    """The registrations of a federation by their digests; none if it is new."""
    path = folder / FILE
    if not path.is_file():
        if (folder / "corpus.json").exists():
            raise UserError(f"{folder}: is a corpus; name a folder of its own for the federation")
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {}
            for number in range(len(arrays.files) // (len(ARRAYS) + 1)):
                values = {name: arrays[f"{number}.{name}"] for name in ARRAYS}
                text = arrays[f"{number}.detection"].tobytes().decode()
                one = ClientRegistration(**values, detection=parse_json(text))
                one.check()
                found[one.digest] = one
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(
            f"{path}: damaged ({error}); restore it from a copy: clients that register anew would "
            "be another federation, with a ledger of its own"
        ) from None
    return found
