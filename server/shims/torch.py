"""Stands in for torch where torch is not installed.

skyrl's JAX backend imports torch at module level for type annotations and for images sent by vLLM, neither of
which the JAX backend meets. Libraries that find a module `torch` ask `isinstance(x, torch.Tensor)`: never true here.
"""

__version__ = "0.0.0"


class Tensor:
    """No value is ever one."""


class dtype:
    """No value is ever one."""
