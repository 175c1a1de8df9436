"""horovodrun, less the part of its start that only repeats what the image's build has proven, and less trusting.

Before it starts a rank, Horovod 0.28.1's launcher asks whether the controller was built in
(horovod/runner/launch.py, run_controller). The answer comes from a new process that imports the framework
(horovod/common/util.py, gloo_built and mpi_built): seconds on a small machine, for every run. The image's build fails
if the configuration's controller does not work, so here the answer is yes.

It unpickles plain data and Horovod's messages only. A worker of an elastic run sends the driver a pickle over HTTP
without any password (horovod/runner/elastic/rendezvous.py), and signs its answers with a key of its own choice
(common/util/network.py): a rank, or whatever else reaches the driver's port, could have root run its code.

Everything that Horovod starts with multiprocessing imports the main program again; this one is empty then.

Runs under the Python that Horovod is installed for, alone in its folder: that folder is first on `sys.path`.
"""

if __name__ == "__main__":
    import base64
    import io
    import pickle
    from typing import Any

    from horovod.runner import launch
    from horovod.runner.common.util import network
    from horovod.runner.driver import driver_service
    from horovod.runner.elastic import rendezvous

    class Messages(pickle.Unpickler):
        """Data, and messages of Horovod's; nothing that is called."""

        def find_class(self, module: str, name: str) -> Any:
            if module.startswith("horovod.runner.") and name.isidentifier() and name.endswith(("Request", "Response")):
                found = super().find_class(module, name)
                if isinstance(found, type) and found.__module__ == module:
                    return found
            raise pickle.UnpicklingError(f"{module}.{name} is no message of Horovod's")

    class Pickle:
        """In the place of cloudpickle."""

        dumps = staticmethod(network.cloudpickle.dumps)

        @staticmethod
        def loads(data: bytes) -> Any:
            return Messages(io.BytesIO(data)).load()

    class Codec:
        """In the place of horovod.runner.common.util.codec."""

        @staticmethod
        def loads_base64(text: bytes) -> Any:
            return Pickle.loads(base64.b64decode(text))

    network.cloudpickle, rendezvous.codec = Pickle, Codec

    for name in ("gloo_built", "mpi_built"):
        if hasattr(launch, name):
            setattr(launch, name, lambda verbose=False: True)
    # Where every host is this one it wants the loopback interface, also where another one is named because more hosts
    # will join (driver_service.py).
    local_interfaces = driver_service.get_local_interfaces
    driver_service.get_local_interfaces = lambda settings: settings.nics or local_interfaces(settings)
    launch.run_commandline()
