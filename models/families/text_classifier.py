"""The family `text_classifier`: an encoder, the mean of its token outputs, and one linear layer.

The encoder is a pretrained model of the transformers library, or a small BERT (Devlin et al. 2019)
that is trained from scratch. The mean over tokens is that of Reimers and Gurevych 2019,
"Sentence-BERT". Weights are read from safetensors only, and a model's own code is never run.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from millrace.models.common.errors import InputError
from millrace.models.common.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class TextClassifier(nn.Module):
    """Maps `input_ids`, int64 `[rows, tokens]`, to logits `[rows, num_classes]`.

    Args:
        num_classes: width of the output.
        vocab_size: size of the vocabulary.
        padding: id of the padding token.
        max_tokens: most tokens of a row.
        pretrained: folder or hub name of an encoder; None: train one from scratch.
        revision: commit of the pretrained encoder on the hub.
        hidden_size: width of an encoder from scratch.
        num_hidden_layers: number of its layers.
        num_attention_heads: number of attention heads in each layer.
        dropout: share of values dropped in training, in an encoder from scratch and before the
            last layer.

    Raises:
        InputError: the encoder cannot be read, or does not fit the tokenizer.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        vocab_size: int,
        padding: int,
        max_tokens: int,
        pretrained: str | None = None,
        revision: str | None = None,
        hidden_size: int = 128,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.padding = padding
        if pretrained is None:
            shape = (hidden_size, num_hidden_layers, num_attention_heads)
            self.encoder = _build_bert(shape, vocab_size, padding, max_tokens, dropout)
        else:
            self.encoder = _load_encoder(pretrained, revision)
            _require_fitting(self.encoder.config, pretrained, vocab_size, max_tokens)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.encoder.config.hidden_size, num_classes)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits, which do not depend on the padding."""
        is_token = input_ids != self.padding
        hidden = self.encoder(input_ids=input_ids, attention_mask=is_token.long()).last_hidden_state
        weights = is_token.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        return cast(Tensor, self.head(self.dropout(mean)))


def _build_bert(
    shape: tuple[int, int, int], vocab_size: int, padding: int, max_tokens: int, dropout: float
) -> "PreTrainedModel":
    from transformers import BertConfig, BertModel

    hidden_size, layers, heads = shape
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=max_tokens,
        pad_token_id=padding,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    encoder = BertModel(config, add_pooling_layer=False)
    encoder.set_attn_implementation(_attention())
    return encoder


def _load_encoder(pretrained: str, revision: str | None) -> "PreTrainedModel":
    from transformers import AutoModel

    try:
        with quiet_transformers():
            encoder = AutoModel.from_pretrained(
                pretrained,
                revision=revision,
                attn_implementation=_attention(),
                use_safetensors=True,
                trust_remote_code=False,
            )
    except Exception as error:  # transformers may raise anything for a bad folder
        raise InputError(
            f"model.pretrained {pretrained!r} cannot be read",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub, with "
            "config.json and model.safetensors of an encoder",
            hint="check the path; for a name on the hub, check the network",
        ) from error
    if encoder.config.is_encoder_decoder:
        raise InputError(
            f"model.pretrained {pretrained!r} is not an encoder",
            seen=encoder.config.model_type,
            valid="an encoder like BERT, RoBERTa, DistilBERT or MiniLM",
        )
    if hasattr(encoder, "pooler"):
        encoder.pooler = None  # the mean over tokens replaces the pooler
    return cast("PreTrainedModel", encoder.float())


def _require_fitting(
    config: "PretrainedConfig", pretrained: str, vocab_size: int, max_tokens: int
) -> None:
    limits = {
        "tokens in model.tokenizer.max_tokens": (max_tokens, _max_positions(config)),
        "tokens in the vocabulary": (vocab_size, config.vocab_size),
    }
    for what, (count, most) in limits.items():
        if count > most:
            raise InputError(
                f"the tokenizer does not fit the encoder {pretrained!r}",
                seen=f"{count} {what}",
                valid=f"at most {most}",
                hint="lower model.tokenizer.max_tokens, or leave model.tokenizer.source out",
            )


def _max_positions(config: "PretrainedConfig") -> int:
    """Return the most tokens of a row; RoBERTa's positions start after its padding token."""
    most = int(getattr(config, "max_position_embeddings", 1 << 20))
    offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
    return most - offset


def _attention() -> str:
    """Return sdpa on a GPU, where it is fast; else eager, which exports the simplest ONNX graph."""
    return "sdpa" if torch.cuda.is_available() else "eager"
