"""Command line of the embedded simulator: ``python -m piwm_gym.donkey_sim --help``."""

import os
import sys
import threading
from collections.abc import Sequence

import tyro

from piwm_gym.donkey_sim.server import serve
from piwm_gym.donkey_sim.settings import ServerSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulator.

    Args:
        arguments: Command line; default: that of the process.

    Returns:
        Exit code: 0, 1 if the port cannot be used or nobody answers there, 2 for settings that
        nothing can be done with.
    """
    try:
        settings = tyro.cli(ServerSettings, prog="python -m piwm_gym.donkey_sim", args=arguments)
    except ValueError as error:  # newer versions of tyro tell of it themselves, and exit
        print(f"error: {error}", file=sys.stderr)
        return 2
    if settings.watch_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        serve(settings, lambda text: print(text, flush=True))
    except ConnectionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with_parent() -> None:
    """End the process at once when standard input ends; nothing is left to be saved."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
