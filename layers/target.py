"""The device that a program is compiled for, which need not be in this machine: planning/ has absent ones."""

import jax
from jax.sharding import AbstractDevice


def target() -> jax.Device | AbstractDevice:
    """Return a device of the mesh, or without a mesh JAX's first: either has `platform` and `device_kind`.

    Inside a compiled function the mesh is abstract, and remembers no more of its devices than these two.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
