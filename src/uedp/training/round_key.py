"""The secret key of a round's draws, kept until the round is in the ledger.

The accounting takes every user as drawn independently of everything else. If a round that was
abandoned could be drawn again, whatever made it stop (too little memory, somebody who watched the
bar) would choose among draws. So an abandoned round is repeated exactly: the key of its draws,
coins, lending and masks is on disk before the first of them is used, and a digest of it beside the
corpus, where a copy of the run folder does not reach. The key of its noise never is.
"""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Literal

from uedp import files
from uedp.mechanism.secret import KEY_BYTES
from uedp.strict import parse_json

FILE = "round.key"

State = Literal["begun", "not begun", "unknown"]


def digest_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


class RoundKey:
    """The key of the round that comes next in a run.

    Guarantees:
      - a key is on disk when `begin` returns, readable by its owner only, and is the key of every
        attempt at that round until `end`
      - the key of a round that has ended is not kept
      - a file that is missing, damaged or of another run or round is never taken for a round that
        has not begun; nor is an older copy of it, given what was marked beside the corpus
    """

    def __init__(self, out: Path, run: str) -> None:
        self._path, self._run = out / FILE, run

    def reset(self) -> None:
        """For a run whose ledger has no line yet: no round has begun."""
        self._write(0, None)

    def begin(self, number: int) -> bytes:
        """The key of this round: the one that it began with, or else a fresh one."""
        known, key = self._read()
        if known != number or key is None:
            key = secrets.token_bytes(KEY_BYTES)
            self._write(number, key)
            files.fsync_path(self._path.parent)  # the name, too, before anything is drawn
        return key

    def end(self, number: int) -> None:
        """The round is in the ledger: its key is replaced by the note that the next has none."""
        self._write(number + 1, None)

    def state(self, number: int, marked: str | None = None) -> State:
        """Whether this round, the first that the ledger does not have, has been begun.

        `marked` is the digest of the key that it began with, if it is known to have begun.
        """
        known, key = self._read()
        if marked is not None:
            same = known == number and key is not None and digest_of(key) == marked
            return "begun" if same else "unknown"
        if known == number:
            return "not begun" if key is None else "begun"
        # a process was killed after the ledger's entry of the round before, and before `end`
        if known == number - 1 and key is not None:
            return "not begun"
        return "unknown"

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[int | None, bytes | None]:
        """The round and its key; no round if the file is not one that this run wrote."""
        try:
            record = parse_json(self._path.read_bytes())
            number, key = record["round"], record["key"]
            key = None if key is None else bytes.fromhex(key)
            if record["run"] != self._run or type(number) is not int:
                return None, None
            if key is not None and len(key) != KEY_BYTES:
                return None, None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None, None
        return number, key

    def _write(self, number: int, key: bytes | None) -> None:
        record = {"run": self._run, "round": number, "key": None if key is None else key.hex()}
        partial = files.partial_path(self._path)
        with open(partial, "w", encoding="utf-8", opener=files.private_opener) as file:
            file.write(json.dumps(record) + "\n")
            files.fsync_file(file)
        partial.replace(self._path)
