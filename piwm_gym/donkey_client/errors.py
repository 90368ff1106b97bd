"""What can go wrong between this program and a Donkey Car simulator."""


class DonkeyError(RuntimeError):
    """The simulator, or the connection to it, failed; the episode is lost.

    The next ``reset`` connects anew.
    """


class DonkeyTimeoutError(DonkeyError, TimeoutError):
    """The simulator did not do something in time."""


class DonkeyConnectionError(DonkeyError, ConnectionError):
    """There is no connection, or it was lost."""


__all__ = ["DonkeyConnectionError", "DonkeyError", "DonkeyTimeoutError"]
