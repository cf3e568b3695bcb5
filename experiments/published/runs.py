"""From a row of a table of training runs to a model, a layout and a machine; driven by its columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.gpus import GPUS
from costmodel.tpus import TPUS
from experiments.published.architectures import VOCABULARIES, known, left_out, plain
from experiments.published.chips import gpu_of
from experiments.published.shapes import Layout, Model, Precision, Remat
from experiments.published.tables import present

Row = Mapping[str, Any]

RACK = 64
"""GPUs of an NVL72 rack that a run of more than one uses: eight hosts are left as spares (NVIDIA/dgxc-benchmarking)."""
MOST_ROUNDED = 0.02
"""How far a width may be from the run's own, so that FSDP splits it evenly."""
PRECISIONS: Mapping[str, Precision] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
}


class Unpredictable(Exception):
    """A row that says too little, or something that the decoder is not; the message is the reason."""


@dataclass(frozen=True)
class Framework:
    """What a framework does whatever its rows say.

    Attributes:
        flash: whether its attention keeps scores on the chip.
        sequence_parallel: whether tensor parallelism splits activations between layers.
        sharded_optimizer: whether plain replicas split the optimiser state.
        grouped: tokens in a group where a mixture's tokens are sent by products with masks; 0 where they are copied.
        remat: what it computes again where a row does not say; None for nothing, as long as that fits in memory.
        crowded: what it computes again where nothing does not fit.
        fsdp: by model, the FSDP group where the table has none.
    """

    flash: bool
    sequence_parallel: bool
    sharded_optimizer: bool
    remat: Remat | None = None
    crowded: Remat = "full"
    fsdp: Mapping[str, int] | None = None
    grouped: int = 0


FRAMEWORKS: Mapping[str, Framework] = {
    "Megatron-LM": Framework(False, False, False, "full"),  # arXiv:2104.04473
    "DeepSpeed": Framework(False, False, False, "full"),  # the same paper's table 2
    "Alpa": Framework(False, False, True, "full", grouped=2048),  # alpa-projects/alpa
    "MaxText (JAX)": Framework(True, False, False, "save_qkv"),  # NVIDIA/dgxc-benchmarking, maxtext/configure.sh
    "MaxText": Framework(True, False, False, "full"),  # MaxText/configs/v5e/16b.sh
    # NVIDIA/dgxc-benchmarking, paxml/configure.sh: FSDP over a host of eight, for 175b over sixteen hosts.
    "PaxML": Framework(True, False, False, None, "save_qkv", {"gpt5b": 8, "gpt175b": 128}),
    "NeMo": Framework(True, True, True),  # NVIDIA/NeMo, its recipes: flash attention, distributed optimiser
}
FIRST_MEGATRON_CHIPS = ("v100-dgx2", "v100-p3", "a100-dgx", "a100-40gb-dgx")
"""Where Megatron-LM's rows are of its first years; on later GPUs it is the library that NeMo calls."""
PLAIN_ATTENTION_CHIPS = ("v4",)
"""TPUs whose rows are older than MaxText's flash attention."""


@dataclass(frozen=True)
class Run:
    """A training run, ready to be traced.

    Attributes:
        chip: the machine's preset without its size.
        machine: the preset with it.
        framework: the key in `FRAMEWORKS`.
        seconds: of a step, as published.
    """

    id: str
    group: str
    model_name: str
    chip: str
    machine: str
    framework: str
    devices: int
    model: Model
    layout: Layout
    seconds: float


def read_run(row: Row) -> Run:
    """A row's run.

    Raises:
        Unpredictable: it cannot be predicted, and why.
    """
    if number(row, "pp", 1) > 1:
        raise Unpredictable("pipeline")
    if not present(row["model"]) or not present(row["n_devices"]):
        raise Unpredictable("no run: a remark or a model's sizes")
    if present(row["status"]) and row["status"] != "ok":
        raise Unpredictable(f"not run: {row['status']}")
    if reason := left_out(str(row["model"])):
        raise Unpredictable(reason)
    name, framework = next(
        ((n, f) for n, f in FRAMEWORKS.items() if plain(str(row["framework"])).startswith(plain(n))), (None, None)
    )
    if name is None or framework is None:
        raise Unpredictable(f"framework {row['framework']!r} is not known")
    devices = int(row["n_devices"])
    chip, machine = machine_of(str(row["hardware"]), devices)
    if name == "Megatron-LM" and chip in GPUS and chip not in FIRST_MEGATRON_CHIPS:
        name, framework = "NeMo", FRAMEWORKS["NeMo"]
    model = read_model(row, name)
    layout = read_layout(row, model, framework, chip, devices)
    model = divisible(with_enough_keys(model, layout.sizes["tensor"]), layout.sizes["fsdp"])
    seconds = step_seconds(row, model, layout, devices)
    return Run(
        str(row["id"]), str(row["group"]), str(row["model"]), chip, machine, name, devices, model, layout, seconds
    )


def number(row: Row, column: str, default: float = math.nan) -> float:
    return float(row[column]) if present(row[column]) else default


def machine_of(hardware: str, devices: int) -> tuple[str, str]:
    """The preset of a machine's description, without and with its size.

    >>> machine_of("TPU v4 (2x 64-chip slice)", 128), machine_of("A100-SXM4-80GB (Selene)", 32)
    (('v4', 'v4:4x4x4*2'), ('a100-dgx', 'a100-dgx:4'))
    """
    if tpu := re.search(r"TPU\s*(v\w+?|7x)\b", hardware):
        chip = {"7x": "v7x", "v7": "v7x"}.get(tpu[1], tpu[1])
        if chip not in TPUS:
            raise Unpredictable(f"no figures for {hardware!r}")
        slices = int(found[1]) if (found := re.search(r"(\d+)\s*x\s+(?:\d+-chip|v\w+-\d+)", hardware)) else 1
        shape = "x".join(map(str, slice_shape(chip, devices // slices)))
        return chip, f"{chip}:{shape}" + (f"*{slices}" if slices > 1 else "")
    name = gpu_of(hardware)
    if name is None:
        raise Unpredictable(f"no figures for {hardware!r}")
    most = GPUS[name].per_host if GPUS[name].per_host <= 16 or devices <= GPUS[name].per_host else RACK
    per_host = min(most, devices)
    return name, f"{name}:{devices // per_host}" + ("" if per_host == GPUS[name].per_host else f"x{per_host}")


def slice_shape(chip: str, chips: int) -> tuple[int, ...]:
    """The most even shape of a slice, with wrap-around where there is one."""
    tpu = TPUS[chip]
    dims = len(tpu.host_shape)
    shapes = [
        shape
        for shape in _factors(chips, dims)
        if list(shape) == sorted(shape) and all(s <= p for s, p in zip(shape, sorted(tpu.pod_shape), strict=True))
    ]
    if not shapes:
        raise Unpredictable(f"no slice of {chips} chips of {chip}")
    return min(shapes, key=lambda shape: (-sum(tpu.wraps(shape)), max(shape) / min(shape)))


def _factors(count: int, dims: int) -> list[tuple[int, ...]]:
    if dims == 1:
        return [(count,)]
    return [(n, *rest) for n in range(1, count + 1) if count % n == 0 for rest in _factors(count // n, dims - 1)]


def read_model(row: Row, framework: str) -> Model:
    """The row's own sizes, and where it lacks them those of the model that it names."""
    public = known(str(row["model"]))
    if public is None and not (present(row["layers"]) and present(row["hidden"]) and present(row["heads"])):
        raise Unpredictable("sizes are not in the table and the model's are not known")

    def size(column: str, attribute: str, default: float = math.nan) -> int:
        own = number(row, column, getattr(public, attribute) if public else default)
        if math.isnan(own):
            raise Unpredictable(f"no {column}")
        return int(own)

    width, heads = size("hidden", "width"), size("heads", "heads")
    mixture = re.search(r"MoE H\d+ L\d+ E(\d+)", str(row["model"]))
    base = Model(
        layers=size("layers", "layers"),
        width=width,
        ffn=size("ffn", "ffn", 8 * width if mixture else 4 * width),
        heads=heads,
        kv_heads=size("kv_heads", "kv_heads", heads),
        head_width=public.head_width if public else width // heads,
        vocabulary=size("vocab", "vocabulary", VOCABULARIES.get(framework, math.nan)),
        sequence=int(number(row, "seq_len")),
        gated=public.gated if public else False,
        experts=public.experts if public else int(mixture[1]) if mixture else 0,
        chosen=public.chosen if public else 2 if mixture else 0,
        moe_every=2 if mixture else 1,
        tied=public.tied if public else framework in ("Megatron-LM", "DeepSpeed", "Alpa"),
    )
    if stated := re.search(r"head_dim (\d+)", str(row["note"])):
        base = replace(base, head_width=int(stated[1]))
    if public is None and not mixture and present(row["params_b"]):
        return nearest(base, 1e9 * float(row["params_b"]), bool(stated))
    return base


def nearest(model: Model, params: float, width_known: bool) -> Model:
    """With the MLP gated or not and the head width that come nearest to the stated number of parameters."""
    widths = {model.head_width} if width_known else {model.head_width, 128, 256}
    choices = [replace(model, gated=gated, head_width=width) for width in sorted(widths) for gated in (False, True)]
    choices.sort(key=lambda choice: choice.head_width != model.head_width or choice.gated)
    return min(choices, key=lambda choice: round(abs(parameter_count(choice) / params - 1), 2))


def parameter_count(model: Model) -> float:
    """Weights in matrices, the vocabulary's included."""
    heads = 2 * (model.heads + model.kv_heads) * model.head_width
    mlp = (3 if model.gated else 2) * model.ffn
    mixtures = model.layers // model.moe_every if model.experts else 0
    layers = model.layers * heads + (model.layers - mixtures + mixtures * model.experts) * mlp
    return model.width * (layers + model.vocabulary * (1 if model.tied else 2))


def with_enough_keys(model: Model, ways: int) -> Model:
    """Keys and values repeated where tensor parallelism splits further than there are heads of them."""
    if model.kv_heads % ways == 0:
        return model
    return replace(model, kv_heads=math.lcm(model.kv_heads, ways))


def divisible(model: Model, ways: int) -> Model:
    """With a width that splits evenly where the run padded its shards; off by no more than MOST_ROUNDED."""
    width = ways * max(1, round(model.width / ways))
    if abs(width / model.width - 1) > MOST_ROUNDED:
        raise Unpredictable(f"a width of {model.width} does not split over {ways} devices")
    return replace(model, width=width)


def read_layout(row: Row, model: Model, framework: Framework, chip: str, devices: int) -> Layout:
    """Axes, batch and what the framework does.

    Raises:
        Unpredictable: the axes do not multiply to the devices, or the layout is left to a heuristic.
    """
    sizes = _sizes(row, framework, devices)
    replicas = sizes["data"] * sizes["expert"] * sizes["fsdp"]
    micro = number(row, "micro_batch")
    total = number(row, "global_batch_seqs", micro * (devices if chip in TPUS else replicas))
    if math.isnan(total):
        raise Unpredictable("no batch")
    passes = number(row, "grad_accum", 1.0 if math.isnan(micro) or chip in TPUS else total / (micro * replicas))
    if total % passes or total / passes < 1:
        raise Unpredictable(f"{total:g} sequences do not split into {passes:g} passes")
    if model.heads % sizes["tensor"] or (total / passes) % replicas or model.sequence % sizes["context"]:
        raise Unpredictable("heads or sequences do not split over the axes")
    along_sequence = "sequence parallel" in f"{row['sharding_note']} {row['recompute']}".lower()
    layout = Layout(
        sizes=sizes,
        batch=int(total / passes),
        passes=int(passes),
        precision=PRECISIONS[str(row["precision"])],
        remat="none",
        flash=framework.flash and chip not in PLAIN_ATTENTION_CHIPS,
        sequence_parallel=sizes["tensor"] > 1 and (framework.sequence_parallel or along_sequence),
        sharded_optimizer=framework.sharded_optimizer and "data_parallel" not in str(row["sharding_note"]),
        grouped=framework.grouped if model.experts else 0,
    )
    if layout.grouped and layout.batch * model.sequence % (layout.grouped * replicas):
        raise Unpredictable(f"its groups of {layout.grouped} tokens do not split over {replicas} replicas")
    return replace(layout, remat=_remat(row, framework, model, layout, chip))


def _sizes(row: Row, framework: Framework, devices: int) -> Mapping[str, int]:
    note = str(row["sharding_note"])
    if "heuristic" in note and devices > 1:
        raise Unpredictable("sharded by a heuristic that the table does not describe")
    if "not recorded" in note:
        raise Unpredictable("the mesh was not recorded")
    tensor, context, expert = (int(number(row, column, 1)) for column in ("tp", "cp", "ep"))
    fsdp = number(row, "fsdp", (framework.fsdp or {}).get(plain(str(row["model"])), 1.0))
    if logical := re.search(r"logical mesh .*?= (\d+)x(\d+)", note):
        data, tensor = int(logical[1]), int(logical[2])
        fsdp, expert = 1, data if "MoE" in str(row["model"]) else 1
    elif "zero_3" in note:
        fsdp = devices
    replicas, rest = divmod(devices, tensor * context)
    data, more = divmod(replicas, int(max(1, fsdp)) * expert)
    if rest or more:
        raise Unpredictable("its axes do not multiply to its devices")
    return {"data": data, "expert": expert, "fsdp": int(max(1, fsdp)), "context": context, "tensor": tensor}


def _remat(row: Row, framework: Framework, model: Model, layout: Layout, chip: str) -> Remat:
    if present(row["recompute"]):
        return {"full": "full", "none": "none", "selective": "none"}.get(str(row["recompute"]), "save_qkv")  # type: ignore[return-value]
    if framework.remat is not None:
        return framework.remat
    return "none" if fits(model, layout, chip) else framework.crowded


def fits(model: Model, layout: Layout, chip: str) -> bool:
    """Whether nothing need be computed again.

    Layers save 34 bytes an element of their input (arXiv:2205.05198, less the scores), beside 16 a parameter (weights
    and gradients in half precision, Adam's state).
    """
    machine = GPUS[chip].memory_bytes if chip in GPUS else TPUS[chip].memory_bytes
    sizes = layout.sizes
    replicas = sizes["data"] * sizes["expert"] * sizes["fsdp"]
    tokens = layout.batch * model.sequence / replicas / sizes["context"]
    saved = 34 * tokens * model.width * model.layers / sizes["tensor"]
    held = 4 + 12 / (sizes["data"] * sizes["context"] if layout.sharded_optimizer else 1)
    state = held * parameter_count(model) / sizes["tensor"] / sizes["fsdp"] / sizes["expert"]
    return saved + state < machine


def step_seconds(row: Row, model: Model, layout: Layout, devices: int) -> float:
    """Seconds of a step: as stated, or from tokens or FLOP/s by the source's own count.

    Raises:
        Unpredictable: none of them is stated.
    """
    if present(row["step_time_s"]):
        return float(row["step_time_s"])
    tokens = layout.batch * layout.passes * model.sequence
    if present(row["tokens_per_s_per_device"]):
        return tokens / (float(row["tokens_per_s_per_device"]) * devices)
    if not present(row["tflops_per_device"]):
        raise Unpredictable("no time, tokens or FLOP/s")
    rate = float(row["tflops_per_device"]) * 1e12 * devices
    if "recompute" in str(row["note"]) or not str(row["framework"]).startswith("MaxText"):
        return megatron_flops(model, tokens) / rate
    return maxtext_flops(model, tokens) / rate


def megatron_flops(model: Model, tokens: float) -> float:
    """Of a step with its recomputation: arXiv:2104.04473, equation 3."""
    width, layers = model.width, model.layers
    share = 1 + model.sequence / (6 * width) + model.vocabulary / (16 * layers * width)
    return 96 * tokens * layers * width**2 * share


def maxtext_flops(model: Model, tokens: float) -> float:
    """Of a step without recomputation, attention not causal: MaxText/maxtext_utils.py."""
    matrices = parameter_count(model) - model.width * model.vocabulary * (0 if model.tied else 1)
    scores = 4 * model.layers * model.heads * model.head_width * model.sequence
    return 3 * tokens * (2 * matrices + scores)
