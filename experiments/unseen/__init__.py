"""Programs that no part of the model was tuned to: written once, to see how far it carries, and planned by shape alone.

Once the compiled program of one has been looked into, it is no longer unseen, whatever is mended then: it stays for
what it tells of that, and others come beside it.

>>> sorted(PROGRAMS)[:3]
['accumulated', 'chunked-attention', 'clip']
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from experiments.unseen import further, held_out, later, networks, science
from experiments.unseen.program import Program

__all__ = ["LOOKED_INTO", "PROGRAMS", "Program"]

PROGRAMS: Mapping[str, Callable[[], Program]] = MappingProxyType(
    {
        "vit": networks.vision_transformer,
        "u-net": networks.u_net,
        "gru": networks.gru,
        "graph-network": networks.graph_network,
        "decode": networks.decode,
        "state-space": networks.state_space,
        "clip": networks.contrastive,
        "vae": networks.autoencoder,
        "remat": networks.rematerialised_layers,
        "wave-3d": science.wave,
        "n-body": science.particles,
        "gaussian-process": science.gaussian_process,
        "navier-stokes": science.navier_stokes,
        "k-means": science.k_means,
        "lattice-boltzmann": later.lattice_boltzmann,
        "conjugate-gradients": later.conjugate_gradients,
        "translation": later.translation,
        "ising": later.ising,
        "coupling-flow": later.coupling_flow,
        "linear-attention": later.linear_attention,
        "sinkhorn": later.sinkhorn,
        "option-pricing": further.option_pricing,
        "page-rank": further.page_rank,
        "physics-informed": further.physics_informed,
        "poisson": further.poisson,
        "grouped-decode": further.grouped_decode,
        "accumulated": further.accumulated,
        "low-rank": further.low_rank,
        "recommendation": further.recommendation,
        "life": further.life,
        "chunked-attention": further.chunked_attention,
        "monte-carlo-chains": further.monte_carlo_chains,
        "video": further.video,
        "kalman": further.kalman,
        "maxwell": held_out.maxwell,
        "shallow-water": held_out.shallow_water,
        "masked-language-model": held_out.masked_language_model,
        "residual-network": held_out.residual_network,
        "diffusion": held_out.diffusion,
        "generate": held_out.generate,
        "retrieval": held_out.retrieval,
        "windowed-attention": held_out.windowed_attention,
        "wavenet": held_out.wavenet,
        "orthogonal-updates": held_out.orthogonal_updates,
        "neural-ode": held_out.neural_ode,
        "low-rank-adapters": held_out.low_rank_adapters,
    }
)
"""By name, what makes the program."""

LOOKED_INTO = (
    "k-means", "gaussian-process", "navier-stokes", "wave-3d", "n-body", "state-space", "clip", "decode", "u-net",
    "vae", "lattice-boltzmann", "ising", "linear-attention", "option-pricing", "page-rank", "grouped-decode",
    "accumulated", "recommendation", "life", "kalman", "neural-ode", "shallow-water",
    "retrieval",
)  # fmt: skip
"""What was compared with its compiled program, array by array, and mended for in part."""
