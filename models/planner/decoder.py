"""The sizes of a decoder, and what follows from them: parameters, operations, KV cache."""

from dataclasses import dataclass
from typing import Literal

Biases = Literal["none", "qkv", "attention", "all"]
"""Which matrices have a bias: none, queries with keys and values, those of attention, or all."""


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture-of-experts decoder.

    Attributes:
        count: experts of a layer, of which a token uses some.
        per_token: experts that process a token.
        width: intermediate width of an expert.
        shared_width: intermediate width of all experts that process every token, together.
        dense_layers: layers, from the first, that have an ordinary MLP instead.
    """

    count: int
    per_token: int
    width: int
    shared_width: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434, section 2.1).

    Attributes:
        kv_rank: width of the compressed keys and values of a token.
        rope_width: width of the part of a key with the rotary embedding, which all heads share.
        nope_width: width of the part of a head's key without it.
        value_width: width of a head's value.
        query_rank: width of the compressed query; None: queries are not compressed.
    """

    kv_rank: int
    rope_width: int
    nope_width: int
    value_width: int
    query_rank: int | None = None


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder.

    Attributes:
        layers: number of layers.
        hidden: width of the residual stream.
        heads: query heads of a layer.
        kv_heads: heads of keys and values of a layer: fewer than `heads` in grouped-query
            attention.
        head_width: width of a head.
        intermediate: width of an MLP.
        vocabulary: rows of the embedding table.
        gated: whether an MLP has a gate, as in llama: three matrices instead of two.
        tied: whether the head is the embedding table.
        positions: rows of a learned table of positions; 0: rotary or none.
        biases: which matrices have a bias.
        norms: norms of a layer.
        norm_bias: whether a norm has a bias (LayerNorm) or not (RMSNorm).
        query_key_norm: whether queries and keys are normalized, head by head.
        final_norm: whether a norm follows the last layer.
        experts: the experts; None: every layer has one MLP.
        latent: latent attention; None: ordinary keys and values.
        window: tokens that a layer with a sliding window attends to at most; 0: no layer has one.
        window_layers: number of layers with a sliding window.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    positions: int = 0
    biases: Biases = "none"
    norms: int = 2
    norm_bias: bool = False
    query_key_norm: bool = False
    final_norm: bool = True
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: int = 0
    window_layers: int = 0

    @property
    def parameters(self) -> int:
        """Number of parameters.

        For a decoder like GPT-3 without its final norm this is 12lh²(1 + 13/12h + (V+s)/12lh)
        (Narayanan et al. 2021, 2104.04473, equation 2).
        """
        tables = (self.vocabulary * (1 if self.tied else 2) + self.positions) * self.hidden
        norm = self.hidden * (2 if self.norm_bias else 1)
        per_layer = self._attention_parameters() + self.norms * norm
        mlps = sum(self._mlp_parameters(width) * n for width, n in self._mlps())
        return tables + self.layers * per_layer + mlps + self._router() + norm * self.final_norm

    @property
    def active_parameters(self) -> int:
        """Number of parameters that process one token: of the experts, those that it uses."""
        return self.parameters - self._idle_experts()

    @property
    def matrix_parameters(self) -> int:
        """Number of parameters that a token is multiplied with, the head's included.

        The embedding table is looked up, and biases and norms are left out.
        """
        mlps = sum(self._mlp_matrices(width) * n for width, n in self._mlps())
        matrices = self.layers * self._attention_matrices() + mlps + self._router_matrices()
        return matrices + self.vocabulary * self.hidden - self._idle_experts(biases=False)

    @property
    def attention_parameters(self) -> int:
        """Number of parameters in the matrices of attention, over all layers."""
        return self.layers * self._attention_matrices()

    @property
    def expert_layers(self) -> int:
        """Number of layers that have experts."""
        return 0 if self.experts is None else self.layers - self.experts.dense_layers

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that the KV cache holds for a token, over all layers.

        2·L·kv_heads·d; of latent attention L·(kv_rank + rope_width), as DeepSeek-V2 (2405.04434,
        table 1) counts them.
        """
        if self.latent is not None:
            return self.layers * (self.latent.kv_rank + self.latent.rope_width)
        return 2 * self.layers * self.kv_heads * self.head_width

    def attended_layer_tokens(self, context: float) -> float:
        """Return the tokens that a token after `context` others attends to, over all layers.

        L·context, and in a layer with a sliding window no more than the window.
        """
        full = self.layers - self.window_layers
        return full * context + self.window_layers * min(context, self.window)

    @property
    def score_width(self) -> float:
        """Width of the products of attention, of which a token has two for each token before it.

        heads·d: once for its scores and once for the values. Latent attention has two widths,
        of which this is the mean.
        """
        if self.latent is None:
            return float(self.heads * self.head_width)
        latent = self.latent
        return self.heads * (latent.nope_width + latent.rope_width + latent.value_width) / 2

    def forward_flops(self, context: float) -> float:
        """Return the operations of the forward pass per token.

        2 per parameter in a matrix product, and 4·L·heads·d·context for attention, which is
        counted without the causal mask (PaLM, 2204.02311, appendix B); with a sliding window less.

        Args:
            context: tokens that each token attends to.
        """
        attended = self.attended_layer_tokens(context)
        return 2.0 * self.matrix_parameters + 4.0 * self.score_width * attended

    def kv_bytes_per_token(self, width: float = 2.0) -> float:
        """Return the bytes of the KV cache of a token.

        Args:
            width: bytes of a number: 2 for float16 and bfloat16, 1 for float8 and int8.
        """
        return self.kv_numbers_per_token * width

    def cache_split(self, tensor_parallel: int) -> int:
        """Return into how many parts tensor parallel devices split the KV cache.

        A device keeps whole heads of keys and values; latent attention has one for all heads.
        """
        return min(tensor_parallel, 1 if self.latent is not None else self.kv_heads)

    def _mlps(self) -> tuple[tuple[int, int], ...]:
        """Return the widths of the MLPs, and how many MLPs have each."""
        if self.experts is None:
            return ((self.intermediate, self.layers),)
        experts, sparse = self.experts, self.expert_layers
        dense = (self.intermediate, experts.dense_layers)
        shared = (experts.shared_width, sparse if experts.shared_width else 0)
        return (dense, (experts.width, experts.count * sparse), shared)

    def _idle_experts(self, *, biases: bool = True) -> int:
        """Return the parameters of the experts that a token does not use."""
        if self.experts is None:
            return 0
        experts = self.experts
        count = self._mlp_parameters if biases else self._mlp_matrices
        idle = (experts.count - experts.per_token) * self.expert_layers
        return count(experts.width) * idle

    def _mlp_matrices(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width

    def _mlp_parameters(self, width: int) -> int:
        biases = width * (2 if self.gated else 1) + self.hidden if self.biases == "all" else 0
        return self._mlp_matrices(width) + biases

    def _router_matrices(self) -> int:
        if self.experts is None:
            return 0
        return self.expert_layers * self.hidden * self.experts.count

    def _router(self) -> int:
        biases = self.experts.count if self.experts is not None and self.biases == "all" else 0
        return self._router_matrices() + self.expert_layers * biases

    def _attention_matrices(self) -> int:
        if self.latent is not None:
            return self._latent_matrices(self.latent)
        queries = self.heads * self.head_width
        return self.hidden * (2 * queries + 2 * self.kv_heads * self.head_width)

    def _latent_matrices(self, latent: LatentAttention) -> int:
        queries = self.heads * (latent.nope_width + latent.rope_width)
        if latent.query_rank is None:
            query = self.hidden * queries
        else:
            query = latent.query_rank * (self.hidden + queries)
        down = self.hidden * (latent.kv_rank + latent.rope_width)
        up = latent.kv_rank * self.heads * (latent.nope_width + latent.value_width)
        return query + down + up + self.heads * latent.value_width * self.hidden

    def _attention_parameters(self) -> int:
        small = 2 * self.head_width if self.query_key_norm else 0
        if self.latent is not None:
            small = self.latent.kv_rank + (self.latent.query_rank or 0)  # their norms
        elif self.biases != "none":
            small += (self.heads + 2 * self.kv_heads) * self.head_width
            small += self.hidden if self.biases in ("attention", "all") else 0
        return self._attention_matrices() + small
