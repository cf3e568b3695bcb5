"""What a second and a byte cost: devices, links, collectives, the roofline. Knows neither JAX nor plans."""

from costmodel import bounds
from costmodel.collectives import KINDS
from costmodel.decoder import Decoder
from costmodel.device import Device
from costmodel.errors import MeshwrightError, ProfileError, UnknownPreset
from costmodel.model import CostModel, MeshCost
from costmodel.placement import Placement, Segment
from costmodel.presets import device_preset, preset, preset_names
from costmodel.topology import Dim, Link, Topology

__all__ = [
    "KINDS",
    "CostModel",
    "Decoder",
    "Device",
    "Dim",
    "Link",
    "MeshCost",
    "MeshwrightError",
    "Placement",
    "ProfileError",
    "Segment",
    "Topology",
    "UnknownPreset",
    "bounds",
    "device_preset",
    "preset",
    "preset_names",
]
