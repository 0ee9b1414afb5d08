"""Rotary settings of a configuration: bases, linear scaling, and Llama 3's frequency factors.

GGUF keeps Llama 3's scaling as a tensor of factors, the Hugging Face form as the parameters from
which they follow. The parameters are found by trying the published ones; a tensor that none of
them gives is refused. Other scalings (yarn, longrope, dynamic) are refused in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgewise.errors import IntegrityError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["F32_MAX", "Rope", "llama3_factors", "match_llama3_factors", "rope_of_config"]

# Published values: Llama 3.1 (factor 8) and 3.2 (factor 32).
_LLAMA3_FACTORS: Final = (8.0, 32.0)
_LLAMA3: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_TOLERANCE: Final = 1e-4
# GGUF keeps these numbers as 32-bit floats.
F32_MAX: Final = 3.4e38


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary settings.

    Attributes:
        theta: Base of the frequencies.
        theta_sliding: Base in sliding layers, or ``None`` where all layers share one.
        linear_factor: Positions are divided by this; 1 for none.
        llama3: Parameters of Llama 3's scaling, or ``None``.
    """

    theta: float
    theta_sliding: float | None = None
    linear_factor: float = 1.0
    llama3: dict[str, float] | None = None

    def to_config(self) -> dict[str, Any]:
        """Return the entries of config.json, in the older and the newer spelling."""
        scaling: dict[str, Any] | None = None
        if self.llama3 is not None:
            scaling = {"rope_type": "llama3", **self.llama3}
        elif self.linear_factor != 1.0:
            scaling = {"rope_type": "linear", "factor": self.linear_factor}
        ours = {"rope_theta": self.theta, **(scaling or {"rope_type": "default"})}
        if self.theta_sliding is None:
            entries: dict[str, Any] = {"rope_theta": self.theta, "rope_parameters": ours}
        else:
            local = {"rope_theta": self.theta_sliding, "rope_type": "default"}
            entries = {
                "rope_theta": self.theta,
                "rope_local_base_freq": self.theta_sliding,
                "rope_parameters": {"full_attention": ours, "sliding_attention": local},
            }
        if scaling is not None:
            entries["rope_scaling"] = scaling
        return entries


def rope_of_config(
    config: Mapping[str, Any], *, theta_default: float, theta_sliding_default: float | None
) -> Rope:
    """Return the rotary settings that a configuration states.

    Args:
        config: config.json.
        theta_default: The architecture's own base.
        theta_sliding_default: The base of its sliding layers, or ``None`` if it has none.

    Raises:
        IntegrityError: a value is not a positive number (``hf-config-invalid``).
        UnsupportedError: a scaling that GGUF cannot carry (``rope-scaling-unsupported``).
    """
    stated = _object(config, "rope_parameters")
    ours = stated.get("full_attention", stated)
    ours = ours if isinstance(ours, dict) else {}
    older = _object(config, "rope_scaling")
    scaling = ours if ours.get("rope_type") else older
    kind = _kind(scaling)
    if older and _kind(older) != kind:  # readers differ in which of the two they believe
        raise _invalid(f"rope_scaling in config.json is {_kind(older)!r}, rope_parameters {kind!r}")
    theta = _positive(ours.get("rope_theta", config.get("rope_theta", theta_default)), "rope_theta")
    sliding = None
    if theta_sliding_default is not None:
        local = stated.get("sliding_attention")
        local = local if isinstance(local, dict) else {}
        if local.get("rope_type", "default") != "default":
            raise unsupported_scaling(str(local["rope_type"]))
        value = local.get("rope_theta", config.get("rope_local_base_freq", theta_sliding_default))
        sliding = _positive(value, "rope_local_base_freq")
    factor, llama3 = 1.0, None
    if kind == "linear":
        factor = _positive(scaling.get("factor"), "rope_scaling.factor")
    elif kind == "llama3":
        llama3 = {
            key: _positive(scaling.get(key), f"rope_scaling.{key}") for key in ("factor", *_LLAMA3)
        }
    elif kind != "default":
        raise unsupported_scaling(str(kind))
    return Rope(theta=theta, theta_sliding=sliding, linear_factor=factor, llama3=llama3)


def llama3_factors(
    parameters: Mapping[str, float], *, theta: float, head_dim: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the factors by which each frequency is divided, ``(head_dim / 2,)`` float32.

    The published rule: wavelengths below ``original / high`` stay, those above ``original / low``
    are stretched by ``factor``, those between are blended.
    """
    import numpy as np  # noqa: PLC0415 - only conversions need it

    original = parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(parameters["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return np.asarray(factors, dtype=np.float32)


def match_llama3_factors(
    factors: np.ndarray[Any, np.dtype[np.float32]], *, theta: float
) -> dict[str, float]:
    """Return the published parameters that give these factors.

    Raises:
        UnsupportedError: none does (``rope-scaling-unsupported``).
    """
    import numpy as np  # noqa: PLC0415 - only conversions need it

    for factor in _LLAMA3_FACTORS:
        parameters = {"factor": factor, **_LLAMA3}
        ours = llama3_factors(parameters, theta=theta, head_dim=2 * factors.size)
        if np.allclose(ours, factors, rtol=_TOLERANCE, atol=0):
            return parameters
    raise unsupported_scaling("an unpublished set of frequency factors")


def unsupported_scaling(kind: str) -> UnsupportedError:
    """Return the error for a rotary scaling that one of the two forms cannot carry."""
    return UnsupportedError(
        "rope-scaling-unsupported",
        f"rotary scaling by {kind} cannot be carried between GGUF and the Hugging Face form",
        context={"rope_type": kind},
        hint="linear and Llama 3 scaling can be",
    )


def _positive(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= F32_MAX:
        raise _invalid(f"{field} in config.json is {value!r}, not a positive number", field)
    return value


def _object(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = config.get(field)
    if value is not None and not isinstance(value, dict):
        raise _invalid(f"{field} in config.json is no object", field)
    return value or {}


def _kind(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _invalid(message: str, field: str = "rope_scaling") -> IntegrityError:
    return IntegrityError(
        "hf-config-invalid",
        message,
        context={"field": field},
        hint="the folder is damaged: fetch or convert the checkpoint again",
    )
