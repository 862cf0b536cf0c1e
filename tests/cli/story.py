"""A folder as the examples on help pages name it: texts, corpora, a run, a key, secrets."""

import contextlib
import io
import json
import shlex
from pathlib import Path

import pytest

from uedp.cli import main

TINY = (
    "--model awd-lstm --tokenizer bytes --user-rate 0.5 --rate 0.03 --rounds 2 "
    "--set model.max_tokens=24 --set model.dropout=0 --method rotation "
    "--set 'model.sizes={embedding_size: 8, num_hidden_layers: 1}'"
)


def typed(line: str) -> str:
    """What a command that succeeds prints on stdout."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert not ended.value.code, line
    return said.getvalue()


def tell(folder: Path) -> None:
    """Make everything that examples read."""
    with contextlib.chdir(folder):
        typed("sample --people 40 --out messages.jsonl --held-out others.jsonl")
        typed(
            "audit plant messages.jsonl --out planted.jsonl --secrets secrets.json --marks marks "
            "--repeats 1,4 --each 2 --left-out 6"
        )
        typed("detect planted.jsonl --out corpus --detector patterns --marks marks")
        typed("detect others.jsonl --out others --detector labels --marks marks")
        typed(f"train --corpus corpus --evaluate others --epsilon 8 --out run {TINY}")
        typed("generate run --count 5 --tokens 8 --seed 1 --out texts.jsonl")
        typed("certificate keygen --out officer.pem")
        typed("certificate sign run --key officer.pem")
        rows = [json.loads(line) for line in Path("messages.jsonl").read_text().splitlines()]
        mails = [f'{row["user"]},"{row["text"]}"' for row in rows if '"' not in row["text"]]
        Path("mails.csv").write_text("\n".join(["author,body", *mails]))
        Path("news.jsonl").write_text('{"user": "press", "text": "It rains."}\n' * 5)
        Path("public.csv").write_text("entity,reason\nParis,a capital\n")
        Path("config.yaml").write_text(Path("run/config.yaml").read_text())
