"""Horovod's own horovodrun, which takes the controller as proven and the network interface that it is told.

Before ranks start, it runs a Python that imports the framework, to ask whether the controller was built in
(horovod/runner/launch.py). The image's build fails if it was not, so here the answer is yes.

Where every host is this one, it takes the loopback interface, also where `--network-interface` names another one
(horovod/runner/driver/driver_service.py). The head of an elastic run may begin alone, and others join it.

There is no public way to either; tests/e2e/test_plain_ranks.py shows that Horovod's release still has both.

What Horovod starts by multiprocessing imports the main program again, which does nothing there.
"""

from __future__ import annotations

if __name__ == "__main__":
    from horovod.runner import launch
    from horovod.runner.driver import driver_service

    launch.gloo_built = launch.mpi_built = lambda verbose=False: True
    of_this_host = driver_service.get_local_interfaces
    driver_service.get_local_interfaces = lambda settings: settings.nics or of_this_host(settings)
    launch.run_commandline()
