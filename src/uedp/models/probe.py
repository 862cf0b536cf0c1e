"""A linear classifier on the mean state of a frozen encoder, as a Transformers model.

It has the fewest weights to add noise to, and the encoder reads every text once, whatever the
number of rounds. Encoders trained for similarity represent a text by the mean of their last
states, not by its first token, which Transformers' own classifiers use.

Importing this module registers the model type `uedp_probe` with Transformers' Auto classes.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from uedp.errors import UserError


class ProbeConfig(PreTrainedConfig):  # type: ignore[misc]
    """`encoder` is the config of the encoder."""

    model_type = "uedp_probe"

    encoder: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None


class ProbeForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """Logits from the mean of an encoder's last states, normalised to length one.

    Guarantees:
      - the encoder is not trained and has no dropout, in training mode either
      - the vector of a text depends on that text only, up to rounding
      - vectors give the same logits as the texts they were computed from
    """

    config_class = ProbeConfig
    base_model_prefix = "encoder"

    def __init__(self, config: ProbeConfig, encoder: Any = None) -> None:
        super().__init__(config)
        if encoder is None:
            encoder = AutoModel.from_config(AutoConfig.for_model(**(config.encoder or {})))
        self.encoder: Any = encoder
        if getattr(encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # reads only the first token; not used here
        self.encoder.requires_grad_(False)
        # No bias: it would take half of each clipped gradient. The mean vector serves as one.
        self.classifier = nn.Linear(self.encoder.config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    @classmethod
    def of(cls, model: Any) -> Self:
        """A probe on the encoder of a classifier, with its labels; a probe is returned itself.

        Before training it gives all labels the same logit.
        """
        if isinstance(model, cls):
            model.encoder.requires_grad_(False)  # loading makes all weights trainable
            model.classifier.requires_grad_(True)
            return model
        encoder = model.base_model
        refusal = UserError(f"train 'probe': {type(model).__name__} has no encoder to build on")
        if encoder is model or not hasattr(encoder.config, "hidden_size"):
            raise refusal
        settings = encoder.config.to_dict()
        settings.pop("_name_or_path", None)  # a path of this machine
        limits = (settings.get(name) for name in ("max_position_embeddings", "n_positions"))
        probe: Self = cls(
            ProbeConfig(
                encoder=settings,
                max_position_embeddings=next((limit for limit in limits if limit), None),
                id2label=model.config.id2label,
                label2id=model.config.label2id,
                pad_token_id=model.config.pad_token_id,
            ),
            encoder,
        )
        probe.eval()
        ids = torch.ones((1, 2), dtype=torch.long, device=next(encoder.parameters()).device)
        try:
            width = probe.encode(ids, torch.ones_like(ids)).shape[1]
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError):
            raise refusal from None
        if width != probe.classifier.in_features:
            raise refusal
        return probe

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """From texts, or from `vectors` that `encode` computed."""
        if vectors is None:
            vectors = self.encode(input_ids, attention_mask)
        directions = nn.functional.normalize(vectors, dim=1)
        return SequenceClassifierOutput(logits=self.classifier(directions))

    @torch.no_grad()
    def encode(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """A vector for each text: the mean state of the encoder."""
        return mean_state(self.encoder, input_ids, attention_mask)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.eval()
        return self

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.encoder.get_input_embeddings()
        return embeddings

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.classifier:
            init.zeros_(module.weight)


def mean_state(encoder: Any, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    """The mean of an encoder's last states over the tokens of each text."""
    states: Tensor = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    if attention_mask is None:
        return states.mean(1)
    mask = attention_mask[..., None].to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1)


AutoConfig.register(ProbeConfig.model_type, ProbeConfig)
AutoModelForSequenceClassification.register(ProbeConfig, ProbeForSequenceClassification)
