"""A linear classifier on what a frozen encoder makes of a text, as a Transformers model.

The fewest weights there are to add noise to, and the encoder reads every text once, whatever the
number of rounds. Encoders trained for similarity put what a text is about into the mean of their
last states, not into its first token, where Transformers' own classifiers look for it.

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
    """`encoder` is the encoder's own config."""

    model_type = "uedp_probe"

    encoder: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None


class ProbeForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """Logits from the mean of an encoder's last states, made as long as a unit.

    Guarantees:
      - the encoder is not trained and drops nothing, in training either
      - a text's vector depends on that text alone, up to rounding
      - from vectors, logits are those from the texts they were made of
    """

    config_class = ProbeConfig
    base_model_prefix = "encoder"

    def __init__(self, config: ProbeConfig, encoder: Any = None) -> None:
        super().__init__(config)
        if encoder is None:
            settings = dict(config.encoder or {})
            encoder = AutoModel.from_config(
                AutoConfig.for_model(settings.pop("model_type"), **settings)
            )
        self.encoder: Any = encoder
        if getattr(encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # reads the first token only; not used here
        self.encoder.requires_grad_(False)
        # A bias would take half of each clipped gradient; what texts have in common serves as one.
        self.classifier = nn.Linear(self.encoder.config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    @classmethod
    def of(cls, model: Any) -> Self:
        """On the encoder of a classifier, with its labels; all guessed alike before training.

        A probe is taken as it is.
        """
        if isinstance(model, cls):
            model.encoder.requires_grad_(False)  # a saved model is read with all of it open
            model.classifier.requires_grad_(True)
            return model
        encoder = model.base_model
        refusal = UserError(f"train 'probe': {type(model).__name__} has no encoder to build on")
        if encoder is model or not hasattr(encoder.config, "hidden_size"):
            raise refusal
        settings = encoder.config.to_dict()
        settings.pop("_name_or_path", None)  # a folder of this machine
        limits = (settings.get(name) for name in ("max_position_embeddings", "n_positions"))
        made: Self = cls(
            ProbeConfig(
                encoder=settings,
                max_position_embeddings=next((limit for limit in limits if limit), None),
                id2label=model.config.id2label,
                label2id=model.config.label2id,
                pad_token_id=model.config.pad_token_id,
            ),
            encoder,
        )
        made.eval()
        ids = torch.ones((1, 2), dtype=torch.long, device=next(encoder.parameters()).device)
        try:
            width = made.read(ids, torch.ones_like(ids)).shape[1]
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError):
            raise refusal from None
        if width != made.classifier.in_features:
            raise refusal
        return made

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """From texts, or from the `vectors` they were made into."""
        if vectors is None:
            vectors = self.read(input_ids, attention_mask)
        return SequenceClassifierOutput(
            logits=self.classifier(nn.functional.normalize(vectors, dim=1))
        )

    @torch.no_grad()
    def read(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """A vector for each text."""
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
