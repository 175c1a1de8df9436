"""Operations on a cluster's VMs: create, add, wait until ready, delete."""
