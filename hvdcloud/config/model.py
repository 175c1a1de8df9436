"""The models of hvdcloud.yaml: every key, its type, default and meaning. file.py reads them from the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from hvdcloud.config.data import DataConfig, DataName, loops, text_allowed
from hvdcloud.config.gce import L4_MACHINES, GceConfig, GpuConfig
from hvdcloud.config.section import Section
from hvdcloud.config.ssh_hosts import SshMachinesConfig
from hvdcloud.config.types import ClusterName, Command, Duration, EnvName, ProjectPath, StorageUrl, Text

Launcher = Literal["horovod", "torchrun", "each"]
"""What starts the ranks of a run, as runs/launchers.py describes it."""


class ImageConfig(Section):
    """What the nodes' containers run."""

    base: Text | None = Field(
        default=None,
        description="another image than hvdcloud's own to make the nodes' image of: any with Python >= 3.10 and the "
        "framework, on Debian or Ubuntu; for run.launcher horovod, Horovod is compiled in if it has none",
    )
    dockerfile: ProjectPath | None = Field(
        default=None,
        description="your own Dockerfile, in the project's folder: on top of the image with ARG BASE, FROM ${BASE}; "
        "else what it makes is taken like base",
    )
    framework: Literal["torch", "tensorflow"] = Field(
        default="torch",
        description="what the image has to train with; image.base has to have it, with run.launcher each only if this "
        "key is written",
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="what the framework computes on")
    version: Text | None = Field(
        default=None,
        description="the framework's version, one that an image can be built for; default: the first; not with base",
    )
    repository: Text | None = Field(
        default=None,
        description="where the image is pushed, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits; gce needs one",
    )
    requirements: ProjectPath | None = Field(
        default="requirements.txt",
        description="pip requirements added to the image; the default counts where that file exists",
    )
    find_links: ProjectPath | None = Field(
        default=None, description="folder of the project with wheels for the build; default: what PIP_FIND_LINKS names"
    )
    ca_bundle: ProjectPath | None = Field(
        default=None,
        description="file of the project with CA certificates for the build; default: what SSL_CERT_FILE, PIP_CERT or "
        "REQUESTS_CA_BUNDLE names",
    )

    @field_validator("version")
    @classmethod
    def _a_base_has_its_own_version(cls, version: str | None, info: ValidationInfo) -> str | None:
        if version is not None and info.data.get("base"):
            raise ValueError("image.base brings the framework, in its own version; take version or base out")
        return version


class ElasticConfig(Section):
    """How far a run may shrink and grow, in nodes."""

    min: int = Field(default=1, ge=1, description="nodes below which the run waits for others")
    max: int | None = Field(default=None, ge=1, examples=[4], description="nodes at most; default: `nodes`")


class RunConfig(Section):
    """One training job."""

    command: Command = Field(default="python train.py", description="what every rank runs, in the project's folder")
    grace: Duration = Field(
        default=30.0,
        description="from SIGTERM to SIGKILL where a run is ended: by stop, limits or a preemption, which leaves less",
    )
    launcher: Launcher = Field(
        default="horovod",
        description="what starts the command: horovod (horovodrun), torchrun (PyTorch's) or each (once on every node)",
    )
    controller: Literal["gloo", "mpi"] = Field(
        default="gloo", description="with launcher horovod: what it coordinates its ranks with"
    )
    mpi_args: str = Field(default="", description="more arguments for mpirun, with controller: mpi")
    slots_per_node: int | None = Field(default=None, ge=1, description="ranks per node; default: its GPUs, else 1")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="environment of every rank; each value is the text that was typed"
    )
    secrets: list[EnvName] = Field(
        default_factory=list, description="names of variables whose values come from this machine's environment"
    )
    elastic: ElasticConfig | None = Field(default=None, description="let the run continue with fewer or more nodes")
    retry: int = Field(
        default=0,
        ge=0,
        le=100,
        description="how often a run that lost nodes is tried again on a new cluster, from its newest checkpoint; it "
        "waits for room, as `up --wait` does, and all its attempts share one `limits`. A failure of the job itself is "
        "not tried again",
    )


class CheckpointsConfig(Section):
    """Where checkpoints go."""

    bucket: StorageUrl | None = Field(
        default=None,
        description="with provider gce, gs://BUCKET[/PREFIX]; with local and ssh, file:///DIR, which can be named in "
        "the environment or a flag only; null, with local and ssh: a folder of this machine's state",
    )
    keep_every: Duration = Field(default=60.0, description="how often new files leave the node")
    workspace_gb: float = Field(
        default=1.0,
        ge=0,
        description="how many GB of what the ranks of a node write in the project's folder are kept for each run; "
        "models and checkpoints, by their names, always are",
    )


class LimitsConfig(Section):
    """What a cluster may cost at worst."""

    max_run_duration: Duration = Field(
        default=43200.0,
        description="after which Compute Engine itself deletes the nodes; with provider ssh they end themselves",
    )
    max_cost: float | None = Field(default=None, gt=0, description="dollars; shortens max_run_duration to fit")
    ask_above: float | None = Field(
        default=50.0, ge=0, description="dollars at worst above which up and launch ask first; null: never"
    )
    idle: Duration | None = Field(
        default=1800.0, description="without a run and without an SSH session, after which the nodes end; null: never"
    )
    stuck: Annotated[Duration, Field(ge=10)] | None = Field(
        default=1800.0,
        description="without a line of output, a checkpoint or any other sign of work on every node, after which a run "
        "ends as failed, with the stacks of all ranks; null: never",
    )


class LocalConfig(Section):
    """Containers on this machine's Docker engine."""

    gpus: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        default=None,
        description="this machine's NVIDIA GPUs that the nodes get, divided between them: all, or how many; if it is "
        "not written, image.device cuda gets all",
    )


class Config(Section):
    """One experiment, as hvdcloud.yaml describes it."""

    name: ClusterName = Field(description="the cluster's name: RFC 1035, at most 40 characters")
    provider: Literal["local", "ssh", "gce"] = Field(
        "local",
        description="who makes nodes: local (containers on this machine), ssh (containers on machines that you reach "
        "by SSH) or gce (Compute Engine VMs)",
    )
    nodes: int = Field(
        default=2, ge=1, le=1000, description="how many nodes; default with provider ssh: one on each of ssh.hosts"
    )
    image: ImageConfig = Field(default_factory=lambda: ImageConfig())
    run: RunConfig = Field(default_factory=lambda: RunConfig())
    checkpoints: CheckpointsConfig = Field(default_factory=lambda: CheckpointsConfig())
    data: dict[DataName, DataConfig] = Field(
        default_factory=dict,
        description="the data sets that are on every node before a run's first step, in $HVDCLOUD_DATA",
        json_schema_extra=text_allowed,
    )
    limits: LimitsConfig = Field(default_factory=lambda: LimitsConfig())
    notify: EnvName | None = Field(
        default=None,
        examples=["RUNS_WEBHOOK"],
        description="name of this machine's environment variable with the https:// address that gets a JSON object by "
        "POST when a run has ended, from its head; `text` in it is what a Slack webhook shows",
    )
    local: LocalConfig = Field(default_factory=lambda: LocalConfig())
    ssh: SshMachinesConfig = Field(default_factory=lambda: SshMachinesConfig())
    gce: GceConfig = Field(default_factory=lambda: GceConfig())

    _project_dir: Path = PrivateAttr(default_factory=Path.cwd)
    _hosts_are_the_files: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _with_dependent_defaults(self) -> Config:
        return self.model_copy(update=_dependent_defaults(self))

    @model_validator(mode="after")
    def _each_node_has_a_host(self) -> Config:
        if self.provider == "ssh" and not self.ssh.hosts:
            raise ValueError("provider ssh needs ssh.hosts: the machines, as `ssh` reaches them")
        if self.provider == "ssh" and self.nodes > len(self.ssh.hosts):
            hosts = len(self.ssh.hosts)
            raise ValueError(f"nodes is {self.nodes}, and ssh.hosts names {hosts}: each host has one node")
        return self

    @model_validator(mode="after")
    def _secrets_are_not_in_the_file(self) -> Config:
        both = sorted(set(self.run.env) & set(self.run.secrets))
        if both:
            raise ValueError(f"run.env and run.secrets both name {both[0]}; a secret's value is never in the file")
        return self

    @model_validator(mode="after")
    def _checkpoints_are_no_data(self) -> Config:
        for loop in loops(self.data, bucket=self.checkpoints.bucket):
            raise ValueError(loop)
        return self

    @model_validator(mode="after")
    def _the_launcher_fits(self) -> Config:
        run = self.run
        if run.launcher == "torchrun" and self.image.framework != "torch":
            raise ValueError(
                f"run.launcher: torchrun starts PyTorch scripts, and image.framework is {self.image.framework}; take "
                "horovod, or each"
            )
        given = [key for key in ("controller", "mpi_args") if key in run.model_fields_set and getattr(run, key)]
        if run.launcher != "horovod" and given:
            raise ValueError(f"run.{given[0]} is Horovod's, and run.launcher is {run.launcher}: remove one of them")
        if run.launcher == "each" and run.elastic is not None:
            raise ValueError("run.elastic needs run.launcher horovod or torchrun: with each, the command starts itself")
        if run.launcher == "each" and run.slots_per_node is not None:
            raise ValueError("run.slots_per_node needs run.launcher horovod or torchrun: each starts one rank a node")
        return self

    @model_validator(mode="after")
    def _elastic_runs_fit(self) -> Config:
        elastic = self.run.elastic
        if elastic is None:
            return self
        if self.run.controller == "mpi":
            raise ValueError("run.elastic needs run.controller: gloo; with Open MPI, Horovod cannot lose a node")
        if not elastic.min <= self.nodes <= self.most_nodes:
            raise ValueError(
                f"nodes is {self.nodes}; with run.elastic it is from {elastic.min} (min) to {self.most_nodes} (max)"
            )
        return self

    @model_validator(mode="after")
    def _every_node_gets_a_gpu_of_this_machine(self) -> Config:
        if self.provider == "local" and isinstance(self.local.gpus, int) and self.local.gpus < self.nodes:
            raise ValueError(
                f"local.gpus is {self.local.gpus}, and nodes is {self.nodes}: each node gets one at least; take "
                f"nodes: 1, which has a rank on every GPU"
            )
        return self

    @property
    def most_nodes(self) -> int:
        """How many nodes a run may grow to."""
        elastic = self.run.elastic
        return self.nodes if elastic is None or elastic.max is None else elastic.max

    @property
    def hosts_are_the_files(self) -> bool:
        """Whether hvdcloud.yaml names the machines of `ssh.hosts`, and not the user's environment."""
        return self._hosts_are_the_files

    @property
    def project_dir(self) -> Path:
        """The folder of hvdcloud.yaml, whose files a run sends to the nodes."""
        return self._project_dir


def _dependent_defaults(config: Config) -> dict[str, Any]:
    """What of the configuration is not written, and follows from other sections: `nodes`, or a whole section."""
    found: dict[str, Any] = {"gce": _gce(config)}
    if config.provider == "ssh" and "nodes" not in config.model_fields_set:
        found["nodes"] = max(1, len(config.ssh.hosts))
    if config.image.device == "cuda" and config.provider == "ssh":
        hosts = [
            host if host.gpus is not None else host.model_copy(update={"gpus": "all"}) for host in config.ssh.hosts
        ]
        found["ssh"] = config.ssh.model_copy(update={"hosts": hosts})
    if config.image.device == "cuda" and config.provider == "local" and "gpus" not in config.local.model_fields_set:
        found["local"] = config.local.model_copy(update={"gpus": "all"})
    return found


def _gce(config: Config) -> GceConfig:
    """Machines that have what the image computes on, and Spot VMs where a run gets over their loss."""
    gce = config.gce
    gpu, default = gce.gpu, GpuConfig()
    named = "machine_type" in gce.model_fields_set
    n1 = named and gce.machine_type.startswith("n1-")
    if "gpu" not in gce.model_fields_set and config.image.device == "cuda" and (n1 or not named):
        gpu = default
    if n1 and gpu is not None and "type" not in gpu.model_fields_set:
        gpu = gpu.model_copy(update={"type": "nvidia-tesla-t4"})
    chosen: dict[str, Any] = {"gpu": gpu}
    if not named and gpu is not None and gpu.type == default.type and gpu.count in L4_MACHINES:
        chosen["machine_type"] = L4_MACHINES[gpu.count]
    if gce.reservation:
        chosen["provisioning"] = "reservation"
    elif gce.provisioning is None:
        chosen["provisioning"] = "spot" if config.run.elastic or config.run.retry else "standard"
    return gce.model_copy(update=chosen)


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of hvdcloud.yaml."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
