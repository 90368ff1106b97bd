"""gymnax's Cart Pole for ``benchmarks.throughput``; runs in an environment that has gymnax.

    python benchmarks/gymnax_peer.py NUM_ENVS

Prints how many steps one order does, then does them for each line it reads.
"""

import sys
from typing import Any

STEPS = 100


def main(num_envs: int) -> None:
    """Step with random actions, compiled, resets included."""
    import gymnax  # type: ignore[import-not-found, unused-ignore]
    import jax  # type: ignore[import-not-found, unused-ignore]

    env, params = gymnax.make("CartPole-v1")

    def step(carry: Any, key: Any) -> Any:
        state, total = carry
        keys = jax.random.split(key, num_envs)
        actions = jax.random.randint(key, (num_envs,), 0, 2)
        _, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        return (state, total + reward.sum()), None

    @jax.jit
    def run(state: Any, key: Any) -> Any:
        return jax.lax.scan(step, (state, 0.0), jax.random.split(key, STEPS))[0]

    keys = jax.random.split(jax.random.key(0), num_envs)
    _, state = jax.vmap(env.reset, (0, None))(keys, params)
    state, _ = jax.block_until_ready(run(state, keys[0]))
    print(STEPS, flush=True)
    for count, _ in enumerate(sys.stdin):
        state, _ = jax.block_until_ready(run(state, jax.random.key(count)))
        print(flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))


__all__ = ["main"]
