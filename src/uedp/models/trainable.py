"""What of a model is trained: all of it, low-rank adapters, or its last blocks."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.files import scratch_dir

_ADAPTER = "default"  # PEFT's name for the only one


def make_trainable(
    model: nn.Module,
    how: str,
    *,
    rank: int = 8,
    alpha: float | None = None,
    targets: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """The model with what `how` names open to training and all else frozen.

    - `full`: every weight.
    - `lora`: to each linear layer but the head, or to those of them whose name ends in one of
      `targets`, a product of two matrices of the given rank is added, scaled by `alpha / rank`
      (default 2); a classifier's head is trained whole.
    - `lora-b`: of each product the second matrix alone, which starts at zero; the first stays as
      it was drawn. Half the weights to add noise to (Sun et al. 2024).
    - `probe`: a linear classifier on the mean of what an encoder makes of a text, in place of a
      classifier's own head.
    - `last:N`: the last N blocks and what comes after them, less weights that earlier layers use
      too (a head tied to the embedding).

    Use the model that is returned, not the one handed in.

    Guarantees:
      - what the model computes is unchanged, but for `probe`, which begins by guessing
      - the same seed gives the same adapters, and the caller's random numbers are left alone
      - adapters have no dropout
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind == "uedp_probe" and how != "probe":
        raise UserError(f"train {how!r}: the model is a probe; train it as one")
    if how == "full":
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return model
    if how in ("lora", "lora-b"):
        scale = 2.0 * rank if alpha is None else alpha
        adapted = _with_adapters(model, rank, scale, targets, seed)
        if how == "lora-b":
            for name, parameter in adapted.named_parameters():
                if ".lora_A." in name:
                    parameter.requires_grad_(False)
        return adapted
    if how == "probe":
        if not _classifies(model):
            raise UserError("train 'probe': for classification; choose `lora` to predict words")
        from uedp.models.probe import ProbeForSequenceClassification

        return ProbeForSequenceClassification.of(model)
    if count := re.fullmatch(r"last:(\d+)", how):
        return _last_blocks(model, int(count[1]))
    raise UserError(
        f"train {how!r}: must be `full`, `lora`, `lora-b`, `probe` or `last:N`, such as last:2"
    )


def trained_names(model: nn.Module) -> list[str]:
    """The names of the parameters that are trained, in the model's order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def save_model(model: nn.Module, folder: Path, tokenizer: Any = None) -> frozenset[str]:
    """Write the model so that `from_pretrained(folder)` loads it, adapters merged.

    The adapters themselves go to `folder/adapter`, the tokenizer beside the model. Gives the names
    of the files that were written.

    Guarantees:
      - the model is not changed, not even by rounding
      - each file is the old one or the new one, and `config.json` comes last; other files in the
        folder are left as they are
      - the network is not asked, and no path of this machine is written
    """
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_dir(folder / "model") as parent, _quiet():
        work = parent / "new"
        work.mkdir()
        if _is_adapted(model):
            inner: Any = model
            base = inner.get_base_model()
            base.save_pretrained(work, state_dict=_merged(base))
            # left to itself, PEFT would ask the hub whether the embedding was resized
            inner.save_pretrained(work / "adapter", save_embedding_layers=False)
            (work / "adapter" / "README.md").unlink(missing_ok=True)  # an empty form
        else:
            whole: Any = model
            whole.save_pretrained(work)
        if tokenizer is not None:
            tokenizer.save_pretrained(work)
        files = sorted(path.relative_to(work) for path in work.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path == Path("config.json")):
            (folder / path).parent.mkdir(exist_ok=True)
            (work / path).replace(folder / path)
    return frozenset(path.as_posix() for path in files)


# --- adapters ------------------------------------------------------------------------------------


def _with_adapters(
    model: nn.Module, rank: int, alpha: float, targets: Sequence[str], seed: int
) -> nn.Module:
    import peft
    from transformers.pytorch_utils import Conv1D

    if rank < 1:
        raise UserError(f"rank {rank}: must be at least 1")
    if not alpha > 0:
        raise UserError(f"alpha {alpha}: must be above 0")
    head = _head(model)
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and name.split(".")[0] not in head
        and (not targets or name.split(".")[-1] in targets)
    }
    if not linear:
        raise UserError(
            f"train 'lora': {type(model).__name__} has no linear layers to adapt"
            + (f" named {', '.join(targets)}" if targets else "; choose `full`")
        )
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=list(linear),
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in linear.values()),
        modules_to_save=head if _classifies(model) else None,
    )
    # PEFT draws on the CPU, whatever the device of the model.
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.default_generator.manual_seed(seed)
        adapted = peft.get_peft_model(model, config)
    adapted.train(model.training)  # PEFT's own modules begin as if training
    # A folder's path would be written with the adapter, and means nothing elsewhere.
    config = adapted.peft_config[_ADAPTER]
    if config.base_model_name_or_path and Path(config.base_model_name_or_path).exists():
        config.base_model_name_or_path = Path(config.base_model_name_or_path).name
    return adapted


def _head(model: Any) -> list[str]:
    """The names of the children that stand on top of the base model and have weights."""
    return [
        name
        for name, child in model.named_children()
        if child is not model.base_model and any(True for _ in child.parameters())
    ]


def _classifies(model: nn.Module) -> bool:
    return "ForSequenceClassification" in type(model).__name__


def _is_adapted(model: nn.Module) -> bool:
    import peft

    return isinstance(model, peft.PeftModel)


def _merged(base: nn.Module) -> dict[str, Tensor]:
    """The weights of the model as it was before adapters, with what they learned added."""
    from peft.tuners.lora import LoraLayer

    adapters = {
        f"{name}." if name else "": module
        for name, module in base.named_modules()
        if isinstance(module, LoraLayer)
    }
    weights = {}
    for key, tensor in base.state_dict().items():
        if ".lora_" in key or ".original_module." in key:
            continue
        before, found, leaf = key.partition("base_layer.")
        if found and leaf == "weight":
            layer: Any = adapters[before]
            tensor = (tensor + layer.get_delta_weight(_ADAPTER).detach()).to(tensor.dtype)
        weights[(before + leaf).replace(f".modules_to_save.{_ADAPTER}.", ".")] = tensor
    return weights


# --- blocks --------------------------------------------------------------------------------------


def _last_blocks(model: nn.Module, count: int) -> nn.Module:
    blocks = _blocks(model)
    if count > len(blocks):
        raise UserError(f"train 'last:{count}': the model has {len(blocks)} blocks only")
    before, after = _used(model, blocks)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    chosen = [
        parameter for block in blocks[len(blocks) - count :] for parameter in block.parameters()
    ]
    earlier = {id(parameter) for parameter in before}
    for parameter in [*chosen, *(p for p in after if id(p) not in earlier)]:
        parameter.requires_grad_(True)
    return model


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The list of layers that holds most of the weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(p.numel() for p in found.parameters()) for found in lists]
    if not any(sizes):
        raise UserError(
            f"train 'last:N': {type(model).__name__} is not made of blocks; choose `full`"
        )
    return list(lists[sizes.index(max(sizes))])  # the outermost, should one hold all of another


def _used(model: Any, blocks: Sequence[nn.Module]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters used up to the last block and behind it.

    Found by running it: the order in which layers are declared is not that of their use.
    """
    calls: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, *_: calls.append(module))
        for module in model.modules()
    ]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=model.device))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    end = 1 + max(place for place, module in enumerate(calls) if module is blocks[-1])
    return _own(calls[:end]), _own(m for m in calls[end:] if not any(True for _ in m.children()))


def _own(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no warnings of PEFT and Transformers; what they warn of is tested."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()
