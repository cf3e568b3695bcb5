"""Models that the tables name but do not describe, each with its source.

Sources: [xai] xai-org/grok-1 model.py · [nem] arXiv:2402.16819, arXiv:2406.11704 (Nemotron-4) · [gpt] arXiv:2005.14165
(GPT-3) · [pax] paxml/contrib/gpu/scripts_gpu/configs.py and NVIDIA/dgxc-benchmarking, paxml/configure.sh · [ll2]
arXiv:2307.09288 · [ll3] arXiv:2407.21783, table 3 · [ll4] meta-llama/Llama-4-Maverick config.json · [mix]
mistralai/Mixtral config.json · [qw3] arXiv:2505.09388 · [gem] arXiv:2408.00118 (Gemma 2) · [alp] alpa-projects/alpa,
benchmark/alpa/suite_manual_moe.py: in every other layer a mixture, inner width eight times the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """A published model; attributes as in `experiments.published.shapes.Model`."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    gated: bool
    experts: int = 0
    chosen: int = 0
    moe_every: int = 1
    tied: bool = False


# By a part of the model's name in small letters, without blanks, dots and dashes.
ARCHITECTURES: Mapping[str, Architecture] = {
    "grok1": Architecture(64, 6144, 32768, 48, 8, 128, 131072, True, 8, 2),  # [xai]
    "nemotron415b": Architecture(32, 6144, 24576, 48, 8, 128, 256000, False),  # [nem]
    "nemotron4340b": Architecture(96, 18432, 73728, 96, 8, 192, 256000, False),  # [nem]
    "gpt3175b": Architecture(96, 12288, 49152, 96, 96, 128, 51200, False, tied=True),  # [gpt]
    "gpt175b": Architecture(96, 12288, 49152, 96, 96, 128, 51200, False, tied=True),  # [gpt]
    "gpt5b": Architecture(24, 4096, 16384, 32, 32, 128, 51200, False, tied=True),  # [pax]
    "llama270b": Architecture(80, 8192, 28672, 64, 8, 128, 32000, True),  # [ll2]
    "llama213b": Architecture(40, 5120, 13824, 40, 40, 128, 32000, True),  # [ll2]
    "llama27b": Architecture(32, 4096, 11008, 32, 32, 128, 32000, True),  # [ll2]
    "llama38b": Architecture(32, 4096, 14336, 32, 8, 128, 128256, True),  # [ll3]
    "llama318b": Architecture(32, 4096, 14336, 32, 8, 128, 128256, True),  # [ll3]
    "llama370b": Architecture(80, 8192, 28672, 64, 8, 128, 128256, True),  # [ll3]
    "llama3170b": Architecture(80, 8192, 28672, 64, 8, 128, 128256, True),  # [ll3]
    "llama31405b": Architecture(126, 16384, 53248, 128, 8, 128, 128256, True),  # [ll3]
    "llama3405b": Architecture(126, 16384, 53248, 128, 8, 128, 128256, True),  # [ll3]
    "mixtral8x7b": Architecture(32, 4096, 14336, 32, 8, 128, 32000, True, 8, 2),  # [mix]
    "mixtral8x22b": Architecture(56, 6144, 16384, 48, 8, 128, 32768, True, 8, 2),  # [mix]
    "qwen330b": Architecture(48, 2048, 768, 32, 4, 128, 151936, True, 128, 8),  # [qw3]
    "qwen3235b": Architecture(94, 4096, 1536, 64, 4, 128, 151936, True, 128, 8),  # [qw3]
    "gemma29b": Architecture(42, 3584, 14336, 16, 8, 256, 256000, True, tied=True),  # [gem]
    "gemma227b": Architecture(46, 4608, 36864, 32, 16, 128, 256000, True, tied=True),  # [gem]
}

NO_TRANSFORMER: Mapping[str, str] = {
    "nemotronh": "half of its layers are Mamba-2, which this model of a decoder has none of",
    "wideresnet": "a convolutional network; width and batch are not recorded",
    "llama4": "shared experts beside the chosen ones, in chunks of the sequence: no decoder of this kind",
    "deepseek": "latent attention and shared experts: no decoder of this kind",
    "kimi": "latent attention and shared experts: no decoder of this kind",
    "gptoss": "windowed attention and other head counts: no decoder of this kind",
}
"""What is left out, and why."""

VOCABULARIES: Mapping[str, int] = {"MaxText": 32000}
"""Where a row gives none: MaxText/configs/base.yml."""


def known(model: str) -> Architecture | None:
    """The architecture that a row's model is, by its name.

    >>> known("Llama3.1 8b").ffn
    14336
    """
    name = plain(model)
    return next((architecture for mark, architecture in ARCHITECTURES.items() if name.startswith(mark)), None)


def left_out(model: str) -> str | None:
    """Why a model is none that this model of a decoder covers; None where it is one."""
    return next((reason for mark, reason in NO_TRANSFORMER.items() if plain(model).startswith(mark)), None)


def plain(model: str) -> str:
    return "".join(letter for letter in model.lower() if letter.isalnum())
