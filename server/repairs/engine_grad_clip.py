"""The optimizer step honours grad_clip_norm: the global norm of the adapter's summed gradient, 0 is no clipping.

Upstream: skyrl/tinker/types.py, AdamParams (see repairs.shared), and skyrl/backends/jax.py, JaxBackendImpl.optim_step.
The clipping itself is in engine_own_step; the metric skyrl.ai/grad_norm is the norm before it.
"""

from repairs import engine_own_step, shared


def apply() -> None:
    shared.apply()
    engine_own_step.apply()
