"""AWD-LSTM (Merity, Keskar and Socher 2018), as a Transformers model.

An LSTM with DropConnect on the hidden-to-hidden weights, dropout of whole words in the embedding,
and all other dropout masks fixed for a sentence. Every sentence starts from the zero state. Each
gate has one bias, not two that add up: a second would only lengthen gradients.

Importing this module registers the model type `awd_lstm` with Transformers' Auto classes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    ModelOutput,
    SequenceClassifierOutput,
)

from uedp.errors import UserError
from uedp.mechanism.clip.shared import SharedMask, draw_mask
from uedp.models.recurrence import State, recurrence, resumed


class AwdLstmConfig(PreTrainedConfig):  # type: ignore[misc]
    """The defaults are those of the UeDP paper; `layer_dropout`, which it omits, is Merity's.

    With `tie_word_embeddings` the output head is the embedding, and the last layer has its width.
    """

    model_type = "awd_lstm"

    vocab_size: int = 10_000
    embedding_size: int = 100
    hidden_size: int = 1150
    num_hidden_layers: int = 3
    embedding_dropout: float = 0.1
    input_dropout: float = 0.0
    weight_dropout: float = 0.3
    layer_dropout: float = 0.3
    output_dropout: float = 0.5
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self, **others: Any) -> None:
        super().__post_init__(**others)
        for name in ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: must be at least 1")
        for kind in ("embedding", "input", "weight", "layer", "output"):
            rate = getattr(self, f"{kind}_dropout")
            if not 0 <= rate < 1:
                raise UserError(f"{kind}_dropout {rate}: must be at least 0 and below 1")

    @property
    def widths(self) -> list[int]:
        """The widths of the embedding and of each layer."""
        last = self.embedding_size if self.tie_word_embeddings else self.hidden_size
        return [self.embedding_size, *[self.hidden_size] * (self.num_hidden_layers - 1), last]


class LockedDropout(nn.Module):
    """Dropout with one mask per sentence, the same for all its tokens."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.rate):
            return x
        return x * draw_mask((x.shape[0], 1, x.shape[2]), self.rate, x)


class WordDropout(nn.Module):
    """Dropout of words: of all vectors of a word, at every position."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.mask = SharedMask(rate)

    def forward(self, vectors: Tensor, ids: Tensor, words: int) -> Tensor:
        mask = self.mask((words,), vectors)
        # applied after the lookup, so that the clip rule for embeddings still holds
        return vectors if mask is None else vectors * mask[ids][..., None]


class RecurrentWeight(nn.Module):
    """The hidden-to-hidden weight, with dropout of its entries.

    The clip rule treats it as a linear layer whose weight is multiplied by `clip_mask`.
    """

    def __init__(self, units: int, rate: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * units, units))
        self.clip_mask = SharedMask(rate)

    def dropped(self) -> Tensor:
        mask = self.clip_mask(self.weight.shape, self.weight)
        return self.weight if mask is None else self.weight * mask

    def forward(self, states: Tensor) -> Tensor:
        """The tap of `recurrence`: zeros, where hooks see the states and the gradients."""
        zero = states.new_zeros((), requires_grad=True)
        return zero.expand(*states.shape[:2], self.weight.shape[0])


class LstmLayer(nn.Module):
    """One LSTM layer with dropout of its recurrent weight."""

    def __init__(self, inputs: int, units: int, rate: float) -> None:
        super().__init__()
        self.input_projection = nn.Linear(inputs, 4 * units)
        self.recurrent = RecurrentWeight(units, rate)

    def forward(self, x: Tensor) -> Tensor:
        return recurrence(self.input_projection(x), self.recurrent.dropped(), self.recurrent)

    def resumed(self, x: Tensor, after: State | None) -> tuple[Tensor, State]:
        """The states after earlier tokens, for generation: without dropout."""
        gates = self.input_projection(x)
        return resumed(gates, self.recurrent.weight.to(gates.dtype), after)


class AwdLstmPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """The config, the name of the base model, and the initial weights."""

    config: AwdLstmConfig
    config_class = AwdLstmConfig
    base_model_prefix = "model"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        bound = 1 / math.sqrt(self.config.hidden_size)
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear | RecurrentWeight):
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -bound, bound)


class AwdLstmModel(AwdLstmPreTrainedModel):
    """From token ids to hidden states.

    Guarantees:
      - padding (where `attention_mask` is 0) changes no state of a token, on either side
      - a state depends on no later token and on no other sentence
    """

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.word_dropout = WordDropout(config.embedding_dropout)
        widths = config.widths
        self.layers = nn.ModuleList(
            LstmLayer(inputs, units, config.weight_dropout) for inputs, units in pairwise(widths)
        )
        self.dropouts = nn.ModuleList(
            LockedDropout(rate)
            for rate in [config.input_dropout, *[config.layer_dropout] * (len(self.layers) - 1)]
        )
        self.output_dropout = LockedDropout(config.output_dropout)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        _refuse_arguments(others)
        order = None
        if attention_mask is not None:  # step over the tokens first, then over the padding
            order = torch.argsort((attention_mask == 0).int(), dim=1, stable=True)
            input_ids = input_ids.gather(1, order)
        x = self.embed_tokens(input_ids)
        x = self.word_dropout(x, input_ids, self.config.vocab_size)
        for dropout, layer in zip(self.dropouts, self.layers, strict=True):
            x = layer(dropout(x))
        x = self.output_dropout(x)
        if order is not None:
            back = torch.argsort(order, dim=1)
            x = x.gather(1, back[..., None].expand_as(x))
        return BaseModelOutput(last_hidden_state=x)

    def resumed(self, input_ids: Tensor, after: list[State] | None) -> tuple[Tensor, list[State]]:
        """The hidden states of tokens that follow others, and the layers' states to resume from."""
        x, states = self.embed_tokens(input_ids), []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, LstmLayer)
            x, state = layer.resumed(x, None if after is None else after[number])
            states.append(state)
        return x, states


@dataclass
class GeneratingOutput(ModelOutput):  # type: ignore[misc]
    """Logits, and the state of every layer: what the next word is predicted from."""

    logits: Tensor | None = None
    state: list[State] | None = None


class AwdLstmForCausalLM(AwdLstmPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A next-word model."""

    _tied_weights_keys: Mapping[str, str] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.model = AwdLstmModel(config)
        self.lm_head = nn.Linear(config.widths[-1], config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: list[State] | None = None,
        resumable: bool = False,
        **others: Any,
    ) -> CausalLMOutput | GeneratingOutput:
        """With `resumable`, for generation: reads on after `state` and returns the next one."""
        if resumable:
            if self.training:
                raise UserError("AWD-LSTM resumes from a state in evaluation mode only")
            states, after = self.model.resumed(input_ids, state)
            return GeneratingOutput(logits=self.lm_head(states), state=after)
        states = self.model(input_ids, attention_mask, state=state, **others).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(states))

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: list[State] | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        if state is not None:
            return {"input_ids": input_ids[:, -1:], "state": state, "resumable": True}
        if self.training or not (attention_mask is None or bool(attention_mask.all())):
            # the state after padding is no state of the text: read all of it at every step
            return {"input_ids": input_ids, "attention_mask": attention_mask}
        return {"input_ids": input_ids, "resumable": True}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # keys and values, which it does not have

    @staticmethod
    def _reorder_cache(state: list[State], beams: Tensor) -> list[State]:
        return [(own[beams], cell[beams]) for own, cell in state]


class AwdLstmForSequenceClassification(AwdLstmPreTrainedModel):
    """A classifier on the last state of a sentence and the mean and maximum of its states.

    A sentence without tokens has zeros for these, and the head's bias for its logits.
    """

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.model = AwdLstmModel(config)
        self.classifier = nn.Linear(3 * config.widths[-1], config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> SequenceClassifierOutput:
        states = self.model(input_ids, attention_mask, **others).last_hidden_state
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return SequenceClassifierOutput(logits=self.classifier(_pooled(states, real != 0)))


def _pooled(states: Tensor, real: Tensor) -> Tensor:
    """Last, mean and maximum over the tokens without padding: (sentences, 3 x features)."""
    places = torch.arange(real.shape[1], device=real.device)
    is_last = places == torch.where(real, places, -1).amax(1, keepdim=True)
    last = (states * is_last[..., None]).sum(1)
    mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    lowest = torch.finfo(states.dtype).min
    highest = torch.where(real[..., None], states, lowest).amax(1)
    highest = torch.where(real.any(1, keepdim=True), highest, 0)
    return torch.cat([last, mean, highest], 1)


def _refuse_arguments(others: Mapping[str, Any]) -> None:
    """Refuse arguments that would be ignored; Transformers and PEFT pass unused ones as None."""
    used = [
        name
        for name, value in others.items()
        if value is not None and value is not False and name != "return_dict"
    ]
    if used:
        raise UserError(f"AWD-LSTM takes input_ids and attention_mask only, not {', '.join(used)}")


AutoConfig.register("awd_lstm", AwdLstmConfig)
AutoModel.register(AwdLstmConfig, AwdLstmModel)
AutoModelForCausalLM.register(AwdLstmConfig, AwdLstmForCausalLM)
AutoModelForSequenceClassification.register(AwdLstmConfig, AwdLstmForSequenceClassification)
