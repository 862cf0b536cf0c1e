"""Choose the weights to train: all of them, low-rank adapters, a probe, or the last blocks."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.files import scratch_dir
from uedp.hf_hub import quiet_transformers
from uedp.models.quantized import QuantizedLinear

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
    """Freeze a model except for the weights that `how` selects. Use the model that is returned.

    - `full`: every weight.
    - `lora`: adds to each linear layer except the head, or to those whose name ends in one of
      `targets`, a product of two matrices of the given rank, scaled by `alpha / rank` (default
      2). A classifier's head is trained in full.
    - `lora-b`: only the second matrix of each product, which starts at zero; the first stays as
      it was drawn. Half as many weights to add noise to (Sun et al. 2024).
    - `lora:N`, `lora-b:N`: the same in the last N blocks only. No gradient flows below them, so
      that a step costs little more than a forward pass.
    - `probe`: a linear classifier on the mean of an encoder's last states, in place of a
      classifier's own head.
    - `last:N`: the last N blocks and the layers after them, without weights that earlier layers
      share (a head tied to the embedding).

    Guarantees:
      - the model computes the same as before, except for `probe`, which starts at equal odds
      - the same seed gives the same adapters, and the caller's random state is unchanged
      - adapters have no dropout
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind == "uedp_probe" and how != "probe":
        raise UserError(f"train {how!r}: the model is a probe; train it as one")
    if how == "full":
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return model
    if adapters := re.fullmatch(r"lora(-b)?(?::(\d+))?", how):
        scale = 2.0 * rank if alpha is None else alpha
        inside = _last(model, int(adapters[2]), how) if adapters[2] else [model]
        adapted = _with_adapters(model, inside, rank, scale, targets, seed)
        if adapters[1]:
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
        f"train {how!r}: must be `full`, `lora`, `lora-b`, `lora:N`, `probe` or `last:N`, such as "
        "last:2"
    )


def trained_names(model: nn.Module) -> list[str]:
    """The names of the parameters that are trained, in the model's order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def adapter_names(model: nn.Module) -> list[str]:
    """The names of trained parameters that belong to adapters."""
    return [name for name in trained_names(model) if ".lora_" in name]


@torch.no_grad()
def fold_adapters(model: nn.Module, learned: Mapping[str, Tensor]) -> None:
    """Add the products of learned adapters to the weights below; the model's own stay as they are.

    `learned` has the adapters' trained parameters by their names (`adapter_names`).

    Guarantees:
      - the model then computes what it would with both, the learned adapters and its own
    """
    from peft.tuners.lora import LoraLayer

    modules: Iterable[tuple[str, Any]] = model.named_modules() if learned else ()
    for name, layer in modules:
        if not isinstance(layer, LoraLayer):
            continue
        adapted: Any = layer
        own = {n: p for n, p in adapted.named_parameters(name) if n in learned}
        kept = {n: p.clone() for n, p in own.items()}
        for n, parameter in own.items():
            parameter.copy_(learned[n])
        weight = adapted.get_base_layer().weight
        weight.add_(adapted.get_delta_weight(_ADAPTER).to(weight.dtype))
        for n, parameter in own.items():
            parameter.copy_(kept[n])


def save_model(
    model: nn.Module,
    folder: Path,
    tokenizer: Any = None,
    folded: Mapping[str, Tensor] = MappingProxyType({}),
) -> frozenset[str]:
    """Write the model so that `from_pretrained(folder)` loads it, with its adapters merged.

    The adapters also go to `folder/adapter`, the tokenizer beside the model. Adapters that were
    `folded` into its weights are written with them, side by side: of twice the rank.

    Returns:
        The names of the files that were written.

    Guarantees:
      - the model is not changed, not even by rounding
      - each file is the old one or the new one, and `config.json` is written last; other files in
        the folder are not touched
      - the network is not used, and no path of this machine is written
    """
    import peft

    folder.mkdir(parents=True, exist_ok=True)
    with scratch_dir(folder / "model") as parent, quiet_transformers():
        work = parent / "new"
        work.mkdir()
        if isinstance(model, peft.PeftModel):
            base: Any = model.get_base_model()
            base.save_pretrained(work, state_dict=_merged(base))
            # by default PEFT asks the hub whether the embedding was resized
            model.save_pretrained(str(work / "adapter"), save_embedding_layers=False)
            (work / "adapter" / "README.md").unlink(missing_ok=True)  # an empty template
            if folded:
                _add_folded(model, work / "adapter", folded)
        else:
            _save_whole(model, work)
        if tokenizer is not None:
            tokenizer.save_pretrained(work)
        files = sorted(path.relative_to(work) for path in work.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path == Path("config.json")):
            (folder / path).parent.mkdir(exist_ok=True)
            (work / path).replace(folder / path)
    return frozenset(path.as_posix() for path in files)


def _add_folded(model: nn.Module, folder: Path, folded: Mapping[str, Tensor]) -> None:
    """Put folded adapters beside those that were saved: their products add up."""
    path, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    current = dict(model.named_parameters())
    saved = load_file(path)
    for name, own in saved.items():
        full = re.sub(r"(\.lora_[AB])\.", rf"\1.{_ADAPTER}.", name)
        if full != name:  # the first half of `lora-b` is not trained: both have the same
            other = folded.get(full, current[full].detach()).to("cpu", own.dtype)
            saved[name] = torch.cat([other, own], 0 if ".lora_A." in name else 1).contiguous()
    save_file(saved, path, {"format": "pt"})
    values = json.loads(settings.read_text())
    doubled = {name: 2 * values[name] for name in ("r", "lora_alpha")}
    settings.write_text(json.dumps(values | doubled, indent=2) + "\n")


def _save_whole(model: Any, folder: Path) -> None:
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        from safetensors.torch import save_model as save_tensors  # shared ones once

        save_tensors(model, str(folder / "model.safetensors"))


# --- adapters ------------------------------------------------------------------------------------


def _with_adapters(
    model: nn.Module,
    inside: Sequence[nn.Module],
    rank: int,
    alpha: float,
    targets: Sequence[str],
    seed: int,
) -> nn.Module:
    """Adapters in the linear layers of the modules `inside`."""
    import peft
    from transformers.pytorch_utils import Conv1D

    if rank < 1:
        raise UserError(f"rank {rank}: must be at least 1")
    if not alpha > 0:
        raise UserError(f"alpha {alpha}: must be above 0")
    head = _head(model)
    chosen = {id(module) for part in inside for module in part.modules()}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and id(module) in chosen
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
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number works
        target_modules=list(linear),
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in linear.values()),
        modules_to_save=head if _classifies(model) else None,
    )
    # PEFT draws on the CPU, on whatever device the model is.
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        adapted = peft.get_peft_model(model, config)
    adapted.train(model.training)  # PEFT's own modules start in training mode
    # The path of a folder would be saved with the adapter, and means nothing elsewhere.
    config = adapted.peft_config[_ADAPTER]
    if config.base_model_name_or_path and Path(config.base_model_name_or_path).exists():
        config.base_model_name_or_path = Path(config.base_model_name_or_path).name
    return adapted


def _head(model: Any) -> list[str]:
    """The names of the children outside the base model that have weights."""
    return [
        name
        for name, child in model.named_children()
        if child is not model.base_model and any(True for _ in child.parameters())
    ]


def _classifies(model: nn.Module) -> bool:
    return "ForSequenceClassification" in type(model).__name__


def _merged(base: nn.Module) -> dict[str, Tensor]:
    """The weights under the names they had before adapters, with the adapters' products added."""
    from peft.tuners.lora import LoraLayer

    adapters = {
        f"{name}." if name else "": module
        for name, module in base.named_modules()
        if isinstance(module, LoraLayer)
    }
    state = base.state_dict()
    for name, module in base.named_modules():
        if isinstance(module, QuantizedLinear):
            for buffer, _ in module.named_buffers():
                del state[f"{name}.{buffer}"]
            state[f"{name}.weight"] = module.weight
    weights = {}
    for key, tensor in state.items():
        if ".lora_" in key or ".original_module." in key:
            continue
        before, adapted, leaf = key.partition("base_layer.")
        if adapted and leaf == "weight":
            layer: Any = adapters[before]
            tensor = (tensor + layer.get_delta_weight(_ADAPTER).detach()).to(tensor.dtype)
        weights[(before + leaf).replace(f".modules_to_save.{_ADAPTER}.", ".")] = tensor
    return weights


# --- blocks --------------------------------------------------------------------------------------


def _last_blocks(model: nn.Module, count: int) -> nn.Module:
    before, after = _used(model, _blocks(model))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    chosen = [p for block in _last(model, count, f"last:{count}") for p in block.parameters()]
    earlier = {id(parameter) for parameter in before}
    for parameter in [*chosen, *(p for p in after if id(p) not in earlier)]:
        parameter.requires_grad_(True)
    return model


def _last(model: nn.Module, count: int, how: str) -> Sequence[nn.Module]:
    """The last `count` blocks."""
    blocks = _blocks(model)
    if count > len(blocks):
        raise UserError(f"train {how!r}: choose at most {len(blocks)}, the blocks of the model")
    return blocks[len(blocks) - count :]


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The list of layers that holds most of the weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(p.numel() for p in layers.parameters()) for layers in lists]
    if not any(sizes):
        raise UserError(
            f"train 'last:N': {type(model).__name__} is not made of blocks; choose `full`"
        )
    return list(lists[sizes.index(max(sizes))])  # the outermost, if one contains another


def _used(model: Any, blocks: Sequence[nn.Module]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters used up to the last block, and those used after it.

    Determined by running the model: layers need not be declared in the order of their use.
    """
    calls: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, *_: calls.append(module))
        for module in model.modules()
    ]
    try:
        with evaluating(model), torch.inference_mode():
            model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    end = 1 + max(place for place, module in enumerate(calls) if module is blocks[-1])
    return _own(calls[:end]), _own(m for m in calls[end:] if not any(True for _ in m.children()))


def _own(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]
