"""Programs that no part of the model was tuned to: written once, to see how far it carries, and planned by shape alone.

What is mended for one of them is mended for its kind, or the program is no longer unseen: then it belongs into
`experiments.workloads`, and another comes in its place.

>>> sorted(PROGRAMS)[:3]
['clip', 'decode', 'gaussian-process']
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from experiments.unseen import networks, science
from experiments.unseen.program import Program

__all__ = ["PROGRAMS", "Program"]

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
    }
)
"""By name, what makes the program."""
