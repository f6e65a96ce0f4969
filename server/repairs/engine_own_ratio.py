"""A sampling log-probability of 1, which no token has, stands for the token's own in this pass: its ratio is 1.

Upstream: skyrl/backends/jax.py, JaxBackendImpl._create_loss_and_grad_fn takes all of them as given. So a policy loss
teaches no token that the policy did not sample, such as what its environment answered, without a forward pass before.
With its own, a token's gradient is -advantage * grad log p.
"""

# pyright: reportMissingImports=false
import jax
import jax.numpy as jnp
from skyrl.backends.jax import JaxBackendImpl

from repairs import engine_own_pass

LEAST = 0.5  # rounding makes a log-probability of 0 a little more


def own_where_asked(sampling_logprobs: jax.Array, logprobs: jax.Array) -> jax.Array:
    return jnp.where(sampling_logprobs > LEAST, jax.lax.stop_gradient(logprobs), sampling_logprobs)


def apply() -> None:
    engine_own_pass.apply()
    JaxBackendImpl.samples_of = staticmethod(own_where_asked)
