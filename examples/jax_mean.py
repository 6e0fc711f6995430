"""Average compressed gradients over the devices of a JAX mesh, inside of ``shard_map``.

    python -m examples.jax_mean --devices 4

Needs jax. Each device gathers messages whose size has a static bound, and decodes them in the
order of devices, so that all devices have the same bits.
"""

from __future__ import annotations

import os

import click


@click.command()
@click.option("--devices", default=4, show_default=True, help="Devices that JAX makes of the CPU.")
@click.option("--codec", default="sign", show_default=True)
@click.option("--steps", default=60, show_default=True)
def main(devices: int, codec: str, steps: int) -> None:
    """Fit a linear map, with the samples spread over all devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    import gcodec.jax

    mesh = jax.make_mesh((devices,), ("device",))
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((48, 64), np.float32)
    x = rng.standard_normal((devices * 64, 48), np.float32)
    y = x @ truth

    def step(weight: jax.Array, residual: jax.Array, x: jax.Array, y: jax.Array) -> tuple:
        """Return the new parameters, and this device's residual."""
        gradient = x.T @ (x @ weight - y) / len(x) + residual[0]
        buffer, length = gcodec.jax.encode_padded(gradient, codec)
        own = gcodec.jax.decode_padded(buffer, length, like=gradient)
        buffers = jax.lax.all_gather(buffer, "device")
        lengths = jax.lax.all_gather(length, "device")
        mean = jnp.zeros_like(gradient)
        for device in range(devices):
            message = buffers[device], lengths[device]
            mean += gcodec.jax.decode_padded(*message, like=gradient) / devices
        return weight - 0.1 * mean, (gradient - own)[None]

    whole, split = PartitionSpec(), PartitionSpec("device")
    train = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(whole, split, split, split),
            out_specs=(whole, split),
            check_vma=False,  # JAX cannot see that all devices compute the same mean
        )
    )
    x, y = (jax.device_put(array, NamedSharding(mesh, split)) for array in (x, y))
    residual = jnp.zeros((devices, *truth.shape))
    residual = jax.device_put(residual, NamedSharding(mesh, split))
    weight = jax.device_put(jnp.zeros_like(truth), NamedSharding(mesh, whole))
    for _ in range(steps):
        # Steps that are dispatched ahead would take the threads that the callbacks need.
        weight, residual = jax.block_until_ready(train(weight, residual, x, y))
    error = float(((weight - truth) ** 2).sum() / (truth**2).sum())
    bound = gcodec.parse(codec).max_encoded_nbytes(truth.size)
    replicas = {bytes(np.asarray(shard.data)) for shard in weight.addressable_shards}
    print(f"nmse {error:.1e} after {steps} steps on {mesh.size} devices")
    print(f"{bound:,} bytes a message in place of {truth.nbytes:,}")
    print(f"distinct replicas: {len(replicas)}")


if __name__ == "__main__":
    main()
