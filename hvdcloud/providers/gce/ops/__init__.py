"""Operations on a cluster's VMs: create, add, wait until ready, delete."""


class AbortedError(Exception):
    """Something else failed or the user interrupted: nothing more may begin."""
