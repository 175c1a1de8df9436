"""horovodrun, less the part of its start that only repeats what the image's build has proven.

Before it starts a rank, Horovod 0.28.1's launcher asks whether the controller was built in
(horovod/runner/launch.py, run_controller). The answer comes from a new process that imports the framework
(horovod/common/util.py, gloo_built and mpi_built): seconds on a small machine, for every run. The image's build fails
if the configuration's controller does not work, so here the answer is yes.

Everything that Horovod starts with multiprocessing imports the main program again; this one is empty then.

Runs under the Python that Horovod is installed for, alone in its folder: that folder is first on `sys.path`.
"""

if __name__ == "__main__":
    from horovod.runner import launch
    from horovod.runner.driver import driver_service

    for name in ("gloo_built", "mpi_built"):
        if hasattr(launch, name):
            setattr(launch, name, lambda verbose=False: True)
    # Where every host is this one it wants the loopback interface, also where another one is named because more hosts
    # will join (driver_service.py).
    local_interfaces = driver_service.get_local_interfaces
    driver_service.get_local_interfaces = lambda settings: settings.nics or local_interfaces(settings)
    launch.run_commandline()
