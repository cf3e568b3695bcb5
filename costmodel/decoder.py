"""What a transformer decoder weighs and computes: parameters, FLOPs, caches, by closed formulas.

Source: the scaling book (jax-ml/scaling-book), "Transformers"; norms and biases, under 0.1 %, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder.

    Attributes:
        width: of the stream between layers; `ffn`: of the MLP inside (of one expert's, in a mixture).
        heads, kv_heads, head_width: of the attention.
        gated: whether the MLP has two inner products (SwiGLU, GEGLU) or one.
        experts, chosen: of a mixture, and how many each token goes to; 0 and 0 for none.
        moe_every: a mixture in every so many layers, a plain MLP in the others.
        tied: whether the vocabulary's embedding is also its last product.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    gated: bool = False
    experts: int = 0
    chosen: int = 0
    moe_every: int = 1
    tied: bool = False

    @property
    def mixtures(self) -> int:
        """How many layers have a mixture of experts."""
        return self.layers // self.moe_every if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Of all layers: queries and output for every head, keys and values for every head of those."""
        return 2 * self.layers * self.width * (self.heads + self.kv_heads) * self.head_width

    @property
    def mlp_parameters(self) -> int:
        """Of all layers and experts."""
        return self._mlp * (self.layers - self.mixtures + self.mixtures * self.experts)

    @property
    def vocabulary_parameters(self) -> int:
        """Embedding and last product."""
        return (1 if self.tied else 2) * self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """Weights in matrices.

        >>> Decoder(80, 8192, 28672, 64, 8, 128, 128256, gated=True).parameters  # LLaMA 3 70B
        70552387584
        """
        return self.attention_parameters + self.mlp_parameters + self.vocabulary_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: of a mixture the chosen experts."""
        idle = self.mixtures * (self.experts - self.chosen) * self._mlp
        return self.parameters - idle

    @property
    def _mlp(self) -> int:
        return (3 if self.gated else 2) * self.width * self.ffn

    def forward_flops(self, tokens: float, context: float = 0.0) -> float:
        """FLOPs of one pass: two a parameter met and token, and two products of queries with `context` keys."""
        scores = 4.0 * self.layers * self.heads * self.head_width * context
        return tokens * (2.0 * self.active_parameters + scores)

    def training_flops(self, tokens: float, context: float = 0.0) -> float:
        """FLOPs of forward and backward passes: three times forward's, 6 N a token without attention."""
        return 3.0 * self.forward_flops(tokens, context)

    def cache_bytes(self, tokens: float, item_bytes: float = 2.0) -> float:
        """Bytes of keys and values for so many tokens."""
        return 2.0 * self.layers * self.kv_heads * self.head_width * item_bytes * tokens

    def saved_bytes(self, tokens: float, arrays: float, item_bytes: float = 2.0) -> float:
        """Bytes of activations kept for the backward pass: so many arrays of the stream's width a layer."""
        return arrays * item_bytes * tokens * self.width * self.layers

    def state_bytes(self, parameter_bytes: float = 2.0, optimizer_bytes: float = 8.0) -> float:
        """Bytes of parameters and optimiser state; by default bfloat16 weights and Adam's two moments in float32."""
        return self.parameters * (parameter_bytes + optimizer_bytes)
