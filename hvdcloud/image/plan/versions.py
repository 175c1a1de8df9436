"""Which versions go together: one row for each image that can be built.

Horovod's last release is 0.28.1 (June 2023). Every row can also be built without Horovod, for the other launchers; a
row whose `horovod` is empty cannot be built with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvdcloud.errors import UsageError

PYTHON_VERSION = "3.11"  # Debian 12's
GLIBC_VERSION = "2.36"  # Debian 12's


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One image that can be built. Of the rows with the same framework and device the first is the default.

    Attributes:
        framework, version, device: as below `image:` in hvdcloud.yaml.
        package: what pip installs: `torch==2.13.0+cpu`. A local version ("+cpu") can be nothing else than this.
        index: where wheels of that local version are, unless the user has them; "": PyPI.
        lock: file in dockerfiles/locks/ with the framework's dependencies, each at one version.
        patches: of Horovod: names in dockerfiles/patches/.
        cuda: version of the CUDA libraries that the framework brings; "" without.
        capabilities: compute capabilities of GPUs that the framework's wheels and Horovod hold code for, ascending.
        nccl: version of the NCCL that framework and Horovod share; "" without.
        donor: image with the CUDA toolkit, in /usr/local/cuda, that Horovod is compiled with; "" without.
        toolkit: file in dockerfiles/locks/ with wheels that hold a CUDA toolkit: then no donor is needed; "" without.
        keras: the Keras that Horovod's callbacks and optimizer work with; "" without.
        environment: variables that every Python process in the image needs, unless they are set already.
        constraints: for pip, when it installs a project's requirements: what they may not replace, besides the
            framework, Horovod, its NCCL and numpy's major version.
        horovod: version of the source package that is compiled; "": nothing is.
        horovod_sha256: of that source package on PyPI; "" without.
    """

    framework: str
    version: str
    device: str
    package: str
    index: str = ""
    lock: str
    patches: tuple[str, ...] = ()
    cuda: str = ""
    capabilities: tuple[str, ...] = ()
    nccl: str = ""
    donor: str = ""
    toolkit: str = ""
    keras: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    constraints: tuple[str, ...] = ()
    horovod: str = "0.28.1"
    horovod_sha256: str = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

    @property
    def label(self) -> str:
        """For image tags: `torch-2.13.0-cpu`."""
        return f"{self.framework}-{self.version}-{self.device}"

    @property
    def project(self) -> str:
        """The framework's name at PyPI: `tensorflow-cpu`."""
        return self.package.partition("==")[0]

    @property
    def proof(self) -> str:
        """What the end of a build proves, as dockerfiles/files/check_ranks.py takes it."""
        if self.horovod:
            return "gloo mpi"
        return "torchrun" if self.framework == "torch" else self.framework

    def without_horovod(self) -> Row:
        """The same versions for launchers that need no Horovod: nothing is patched or compiled."""
        return replace(self, patches=(), donor="", toolkit="", horovod="", horovod_sha256="")


_PATCHES = ("elastic-messages", "gloo-stall-check", "rank-waits")
_TORCH_PATCHES = (*_PATCHES, "cxx17")
_TENSORFLOW_PATCHES = _PATCHES
_TENSORFLOW_2_21_PATCHES = (*_TENSORFLOW_PATCHES, "tensorflow-2.21", "tf-keras")
# What TensorFlow's own metadata asks for. With Keras 3 Horovod's optimizer would not average gradients; where tf_keras
# is used there is no `keras` at all: https://github.com/horovod/horovod/issues/4290
_TENSORFLOW_2_15 = (
    *("tensorflow==2.15.1", "tensorflow-cpu==2.15.1", "keras==2.15.0"),
    *("ml-dtypes<0.4", "protobuf<5", "tensorboard<2.16", "wrapt<1.15"),
)
_TENSORFLOW_2_21 = (
    *("tensorflow==2.21.0", "tensorflow-cpu==2.21.0", "tf-keras==2.21.0", "keras<0"),
    *("h5py<3.15", "ml-dtypes<1", "protobuf<8"),
)
# tf.keras is tf_keras, which is Keras 2: https://www.tensorflow.org/guide/keras#tensorflow_+_keras_2_backwards_compatibility
_LEGACY_KERAS = (("TF_USE_LEGACY_KERAS", "1"),)

ROWS = (
    Row(
        framework="torch",
        version="2.13.0",
        device="cpu",
        package="torch==2.13.0+cpu",
        index="https://download.pytorch.org/whl/cpu",
        lock="torch-cpu.txt",
        patches=_TORCH_PATCHES,
    ),
    Row(
        framework="torch",
        version="2.7.1",
        device="cuda",
        package="torch==2.7.1",
        lock="torch-2.7.1-cuda.txt",
        patches=_TORCH_PATCHES,
        cuda="12.6",
        capabilities=("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"),
        nccl="2.26.2",
        donor="nvidia/cuda:12.6.3-devel-ubuntu22.04",
    ),
    Row(
        framework="torch",
        version="2.13.0",
        device="cuda",
        package="torch==2.13.0",
        lock="torch-2.13.0-cuda.txt",
        patches=_TORCH_PATCHES,
        cuda="13.0",
        capabilities=("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"),
        nccl="2.29.7",
        toolkit="toolkit-13.0.txt",
    ),
    # Its lock was tried in a virtual environment (one NCCL, torchrun); tests/images have not built its image yet.
    Row(
        framework="torch",
        version="2.14.1",
        device="cuda",
        package="torch==2.14.1",
        lock="torch-2.14.1-cuda.txt",
        cuda="13.0",
        capabilities=("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"),
        nccl="2.30.7",
        horovod="",
        horovod_sha256="",
    ),
    Row(
        framework="tensorflow",
        version="2.15.1",
        device="cpu",
        package="tensorflow-cpu==2.15.1",
        lock="tensorflow-2.15.1-cpu.txt",
        patches=_TENSORFLOW_PATCHES,
        keras="keras 2.15.0",
        constraints=_TENSORFLOW_2_15,
    ),
    Row(
        framework="tensorflow",
        version="2.21.0",
        device="cpu",
        package="tensorflow-cpu==2.21.0",
        lock="tensorflow-2.21.0-cpu.txt",
        patches=_TENSORFLOW_2_21_PATCHES,
        keras="tf-keras 2.21.0",
        environment=_LEGACY_KERAS,
        constraints=_TENSORFLOW_2_21,
    ),
    Row(
        framework="tensorflow",
        version="2.15.1",
        device="cuda",
        package="tensorflow==2.15.1",
        lock="tensorflow-2.15.1-cuda.txt",
        patches=_TENSORFLOW_PATCHES,
        cuda="12.2",
        # Its code for 8.0 is also there as PTX, which newer GPUs compile when they load it; that takes minutes.
        capabilities=("5.0", "6.0", "7.0", "7.5", "8.0"),
        nccl="2.16.5",
        donor="nvidia/cuda:12.2.2-devel-ubuntu22.04",
        keras="keras 2.15.0",
        constraints=(*_TENSORFLOW_2_15, "nvidia-nccl-cu12==2.16.5"),
    ),
    Row(
        framework="tensorflow",
        version="2.21.0",
        device="cuda",
        package="tensorflow==2.21.0",
        lock="tensorflow-2.21.0-cuda.txt",
        patches=_TENSORFLOW_2_21_PATCHES,
        cuda="12.5.1",
        capabilities=("6.0", "7.0", "8.0", "8.9", "9.0"),
        nccl="2.27.7",
        donor="nvidia/cuda:12.5.1-devel-ubuntu22.04",
        keras="tf-keras 2.21.0",
        environment=_LEGACY_KERAS,
        constraints=(*_TENSORFLOW_2_21, "nvidia-nccl-cu12==2.27.7"),
    ),
)


def find(framework: str, device: str, version: str | None = None, *, horovod: bool = True) -> Row:
    """The row for `image.framework`, `image.device` and `image.version`, with Horovod or without.

    Raises UsageError: there is none.
    """
    rows = [row for row in ROWS if (row.framework, row.device) == (framework, device)]
    fitting = [row for row in rows if row.horovod] if horovod else [row.without_horovod() for row in rows]
    for row in fitting:
        if version in (None, row.version):
            return row
    if rows:
        raise UsageError(
            f"there is no image for {framework} {version} on {device}{' with Horovod' if horovod else ''}",
            hint=f"set image.version to one of: {_listed([row.version for row in fitting])}; or leave it out",
        )
    known = _listed([f"{row.framework} on {row.device}" for row in ROWS])
    message = f"there is no image for {framework} on {device}"
    raise UsageError(message, hint=f"set image.framework and image.device to one of: {known}")


def check_fits(row: Row, *, gpu: str, capability: str) -> None:
    """Makes sure that a row's image runs on a GPU. An image for CPUs runs beside any GPU.

    Compiled code runs on GPUs of its own major version and the same minor version or a higher one:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility

    Args:
        capability: the GPU's compute capability: "7.5".

    Raises:
        UsageError: it does not; the hint names the row that does.
    """
    if not row.cuda or _runs_on(row, capability):
        return
    others = [other for other in ROWS if (other.framework, other.device) == (row.framework, row.device)]
    fitting = [each.version for each in others if _runs_on(each, capability) and (each.horovod or not row.horovod)]
    raise UsageError(
        f"{row.framework} {row.version} for CUDA {row.cuda} does not run on {gpu}, whose compute capability is "
        f"{capability}: it has code for {_listed(row.capabilities)}",
        hint=f"set image.version: {fitting[0]}, whose image does"
        if fitting
        else f"take another GPU: none of hvdcloud's images with {row.framework} runs on this one",
    )


def _runs_on(row: Row, capability: str) -> bool:
    major, minor = (int(part) for part in capability.split("."))
    compiled = [tuple(int(part) for part in each.split(".")) for each in row.capabilities]
    return any(its_major == major and its_minor <= minor for its_major, its_minor in compiled)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
