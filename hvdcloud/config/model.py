"""The models of hvdcloud.yaml: every key, its type, default and meaning. file.py reads them from the file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from hvdcloud.config.data import DataConfig, DataName, loops, text_allowed
from hvdcloud.config.notify import NotifyConfig
from hvdcloud.config.retry import RetryConfig
from hvdcloud.config.section import EnvName, Section
from hvdcloud.config.ssh import SshMachinesConfig

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NO_USER = 2**32 - 1
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def parse_duration(value: object) -> object:
    """Seconds from `90`, `60s`, `1h30m` or `0.5s`. Raises ValueError: other text; other types are left to pydantic."""
    if not isinstance(value, str):
        try:
            return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        except OverflowError:
            raise ValueError("a duration has fewer digits; write 60s, 30m, 12h or 1h30m") from None
    text = value.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{value!r} is not a duration; write 60s, 30m, 12h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def duration_text(seconds: float) -> str:
    """A duration as hvdcloud.yaml has it: `90s`, `30m`, `12h`."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def _rfc1035(name: str) -> str:
    # Compute Engine takes 63 characters; 40 leave room for what is made of the name (NAME-NNN, firewall rules).
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise ValueError(
            f"{name!r} is not a cluster name: at most 40 characters a-z, 0-9 and '-', a letter first, no '-' last"
        )
    return name


def _bucket_url(url: str) -> str:
    if url.startswith("file://") and not re.fullmatch(r"file:///.+", url):
        raise ValueError(f"{url!r} needs an absolute folder: file:///DIR")
    if not re.fullmatch(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](/.*)?|file:///.+", url):
        raise ValueError(f"{url!r} is neither gs://BUCKET[/PREFIX] nor file:///DIR")
    return url.rstrip("/")


def _shell_words(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} cannot be split into words: {error}") from error
    if not words:
        raise ValueError("the command is empty")
    return command


def _rank_user(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        # It reads `1000:50` as a number in base 60, so no number can be trusted to be what was written.
        raise ValueError('it needs quotes: "1000" or "1000:1000"; YAML takes it for a number')
    if not isinstance(value, str):
        return value
    if found := re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", value):
        if any(int(number) >= _NO_USER for number in found.groups("0")):
            raise ValueError(f"{value!r} is not a user: ids end at {_NO_USER - 1}")
    elif not re.fullmatch(r"[a-z_][-.a-z0-9_]{0,31}", value):
        raise ValueError(f"{value!r} is neither the name of a user nor UID or UID:GID")
    if value == "root" or re.fullmatch(r"0+(:\d+)?", value):
        raise ValueError(f"{value!r} is root, whom ranks run as where run.user is not set; take it out")
    return value


def _spot_nodes(value: object) -> object:
    """It was true or false once."""
    return ("all" if value else "none") if isinstance(value, bool) else value


def _scalar_text(value: object) -> object:
    """YAML reads `EPOCHS: 3` as a number; an environment variable is text all the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_DURATION.pattern}$"}, {"type": "number"}]}),
]


def is_duration(field: FieldInfo) -> bool:
    """Whether a key's value is seconds that are written as a duration."""
    return Duration in get_args(field.annotation) or BeforeValidator(parse_duration) in field.metadata


ClusterName = Annotated[str, AfterValidator(_rfc1035)]
BucketUrl = Annotated[str, AfterValidator(_bucket_url)]
RankUser = Annotated[str, BeforeValidator(_rank_user)]
EnvValue = Annotated[str, BeforeValidator(_scalar_text)]
SpotNodes = Annotated[
    Literal["workers", "all", "none"] | None,
    BeforeValidator(_spot_nodes),
    WithJsonSchema(
        {"anyOf": [{"enum": ["workers", "all", "none"], "type": "string"}, {"type": "boolean"}, {"type": "null"}]}
    ),
]
Command = Annotated[str, AfterValidator(_shell_words)]
Text = Annotated[str, Field(min_length=1)]


class RemoteBuildConfig(Section):
    """How `build --remote` uses Cloud Build, in `gce.project`."""

    region: Text = Field(default="global", description="where it builds: global, or e.g. us-central1")
    machine_type: Literal["E2_MEDIUM", "E2_STANDARD_2", "E2_HIGHCPU_8", "E2_HIGHCPU_32"] = Field(
        default="E2_HIGHCPU_8", description="what it builds on; compiling Horovod uses every core"
    )
    service_account: Text | None = Field(
        default=None,
        description="e-mail address of the account that runs it; a terraform output; default: the project's",
    )
    endpoint: str | None = Field(
        default=None, description="another Cloud Build API endpoint: one of Google's; any other only in the environment"
    )


class ImageConfig(Section):
    """What the nodes' containers run."""

    base: Text | None = Field(
        default=None,
        description="another image than hvdcloud's own to make the nodes' image of: any with Python >= 3.10 and the "
        "framework, on Debian or Ubuntu; Horovod is compiled in if it has none",
    )
    dockerfile: Text | None = Field(
        default=None,
        description="your own Dockerfile, in the project's folder: on top of the image with ARG BASE, FROM ${BASE}; "
        "else what it makes is taken like base",
    )
    framework: Literal["torch", "tensorflow"] = Field(
        default="torch", description="the framework that Horovod is built against; image.base has to have it"
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="what the framework computes on")
    version: Text | None = Field(
        default=None,
        description="the framework's version, one that an image can be built for; default: the first; not with base",
    )
    cuda_donor: Text | None = Field(
        default=None,
        description="image whose /usr/local/cuda compiles Horovod for device cuda; default: one of NVIDIA's, or none "
        "where PyPI has the compiler",
    )
    repository: Text | None = Field(
        default=None,
        description="where the image is pushed, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits; gce needs one",
    )
    requirements: str | None = Field(
        default="requirements.txt",
        description="pip requirements added to the image; the default counts where that file exists",
    )
    find_links: str | None = Field(
        default=None, description="folder of local wheels for the build; default: what PIP_FIND_LINKS names"
    )
    ca_bundle: str | None = Field(
        default=None,
        description="CA certificates for the build; default: what SSL_CERT_FILE, PIP_CERT or REQUESTS_CA_BUNDLE names",
    )
    remote: RemoteBuildConfig = Field(default_factory=lambda: RemoteBuildConfig())

    @field_validator("version")
    @classmethod
    def _a_base_has_its_own_version(cls, version: str | None, info: ValidationInfo) -> str | None:
        if version is not None and info.data.get("base"):
            raise ValueError("image.base brings the framework, in its own version; take version or base out")
        return version


class ElasticConfig(Section):
    """How far a run may shrink and grow, in nodes, and how patient it is."""

    min: int = Field(default=1, ge=1, description="nodes below which the run waits for others")
    max: int | None = Field(default=None, ge=1, examples=[4], description="nodes at most; default: `nodes`")
    longest_step: Duration = Field(
        default=30.0,
        description="how long a step of the training may take; ranks that have not ended theirs so long after a loss "
        "are taken to be stuck, and start again from the newest checkpoint",
    )


class RunConfig(Section):
    """One training job."""

    command: Command = Field(default="python train.py", description="what every rank runs, in the project's folder")
    controller: Literal["gloo", "mpi"] = Field(default="gloo", description="what Horovod coordinates its ranks with")
    mpi_args: str = Field(default="", description="more arguments for mpirun, with controller: mpi")
    slots_per_node: int | None = Field(default=None, ge=1, description="ranks per node; default: its GPUs, else 1")
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, description="environment of every rank")
    secrets: list[EnvName] = Field(
        default_factory=list, description="names of variables whose values come from this machine's environment"
    )
    user: RankUser | None = Field(
        default=None,
        examples=["1000"],
        description='whom ranks run as: a user of the image, "UID" or "UID:GID", in quotes; such ranks cannot read '
        "what the node program keeps to itself: storage credentials, SSH keys; default: root",
    )
    elastic: ElasticConfig | None = Field(default=None, description="let the run continue with fewer or more nodes")
    retry: RetryConfig | None = Field(
        default=None, description="try the run again on a new cluster, from its newest checkpoint, when nodes are lost"
    )


class CheckpointsConfig(Section):
    """Where checkpoints go."""

    bucket: BucketUrl | None = Field(
        default=None,
        description="gs://BUCKET[/PREFIX] or file:///DIR; null, with provider local and ssh, means a folder of this "
        "machine; the folder is empty or a bucket of hvdcloud's, any other only in the environment or a flag",
    )
    keep_every: Duration = Field(default=60.0, description="how often new files leave the node")


class LimitsConfig(Section):
    """What a cluster may cost at worst."""

    max_run_duration: Duration = Field(
        default=43200.0,
        description="after which Compute Engine itself deletes the nodes; with provider ssh they end themselves",
    )
    max_cost: float | None = Field(default=None, gt=0, description="dollars; shortens max_run_duration to fit")
    monthly_cost: float | None = Field(
        default=None,
        gt=0,
        description="dollars; up, launch and resize are refused where this month's clusters would cost more, by the "
        "records in the bucket",
    )
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
    share: bool = Field(default=False, description="take GPUs also where another cluster or another program uses them")


L4_MACHINES = {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}
"""Number of NVIDIA L4 → the machine type that comes with them, which is the default."""


class GpuConfig(Section):
    """The accelerators of one node."""

    type: Text = Field(
        default="nvidia-l4",
        description="Compute Engine's accelerator type; on an N1 gce.machine_type, the default is nvidia-tesla-t4",
    )
    count: int = Field(default=1, ge=0, description="GPUs per node")


class SshConfig(Section):
    """Who may reach the nodes' sshd."""

    source: Text = Field(default="auto", description="auto: the caller's own address /32 · a CIDR · iap")


class GceConfig(Section):
    """Compute Engine."""

    project: str | None = Field(default=None, description="default: the credentials' project")
    zones: list[str] = Field(
        default_factory=list, description="tried in order; empty: every zone that has the GPU, cheapest first"
    )
    machine_type: str = Field(
        default="n1-standard-8",
        description="machine type of every node; with NVIDIA L4, the default is the g2-standard that has as many: "
        "g2-standard-8 for one",
    )
    gpu: GpuConfig | None = Field(
        default=None,
        description="GPUs of every node. If it is not written, image.device cuda gets one nvidia-l4, on an N1 "
        "gce.machine_type one nvidia-tesla-t4; other machine types bring their own",
    )
    head_machine_type: Text | None = Field(
        default=None,
        description="machine type of the head, where it is not the others': without GPUs, it only drives them and "
        "takes no ranks",
    )
    spot: SpotNodes = Field(
        default=None,
        description="which nodes are Spot VMs, cheaper, but may be taken away: workers (all but the head), all or "
        "none; default: workers with run.elastic, all with a run.retry that is on preempted, else none; true and false "
        "mean all and none",
    )
    disk_gb: int = Field(default=100, ge=10, le=65536, description="boot disk")
    local_ssd: int = Field(
        default=0,
        ge=0,
        le=24,
        description="local SSDs of 375 GB each on every node, where its data sets then are; how many a machine type "
        "takes, `doctor` says; A2 Ultra and A3 bring their own",
    )
    vm_image: Literal["cos", "dlvm"] = Field(default="cos", description="Container-Optimized OS or Deep Learning VM")
    network: str | None = Field(default=None, description="VPC network; a terraform output")
    subnetwork: str | None = Field(
        default=None,
        description="subnetwork; a name: those of all regions that have one of this name, a URL: that of one region; "
        "a terraform output",
    )
    service_account: str | None = Field(
        default=None,
        description="the nodes' service account, which a job acts as; a terraform output. default: the project's "
        "default account",
    )
    head_service_account: str | None = Field(
        default=None,
        description="the head's service account, where it is not the others': it may replace lost nodes; a terraform "
        "output",
    )
    self_delete: bool | None = Field(
        default=None,
        description="whether the nodes' tokens may be used for Compute Engine, so that nodes delete themselves and "
        "replace lost ones where their account is allowed to; else they are good for storage, images and logs alone. "
        "Default: unless service_account is default",
    )
    ssh: SshConfig = Field(default_factory=lambda: SshConfig(), description="who may reach the nodes")
    endpoint: str | None = Field(
        default=None,
        description="another endpoint of Compute Engine's API, and of the APIs that doctor and prices ask: "
        "one of Google's; any other only in the environment",
    )

    @model_validator(mode="after")
    def _a_subnetwork_has_a_network(self) -> GceConfig:
        # The firewall rules are the network's, and its name does not follow from the subnetwork's.
        if self.subnetwork and not self.network:
            raise ValueError("subnetwork is set without network; name the network that it is a part of")
        return self


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
    notify: NotifyConfig = Field(default_factory=lambda: NotifyConfig())
    local: LocalConfig = Field(default_factory=lambda: LocalConfig())
    ssh: SshMachinesConfig = Field(default_factory=lambda: SshMachinesConfig())
    gce: GceConfig = Field(default_factory=lambda: GceConfig())

    _project_dir: Path = PrivateAttr(default_factory=Path.cwd)
    _hosts_are_the_files: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _each_node_has_a_host(self) -> Config:
        if self.provider != "ssh":
            return self
        hosts = self.ssh.hosts
        if not hosts:
            raise ValueError("provider ssh needs ssh.hosts: the machines, as `ssh` reaches them")
        if "nodes" not in self.model_fields_set:
            object.__setattr__(self, "nodes", len(hosts))
        if self.nodes > len(hosts):
            raise ValueError(f"nodes is {self.nodes}, and ssh.hosts names {len(hosts)}: each host has one node")
        if self.image.device == "cuda":
            given = [host if host.gpus is not None else host.model_copy(update={"gpus": "all"}) for host in hosts]
            # A provider sees this section only.
            object.__setattr__(self, "ssh", self.ssh.model_copy(update={"hosts": given}))
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
    def _open_mpi_has_no_other_user(self) -> Config:
        # Its daemons need root's SSH key, and start whatever program a rank asks for (MPI_Comm_spawn).
        if self.run.user and self.run.controller == "mpi":
            raise ValueError("run.user needs run.controller: gloo; Open MPI's daemons, and so its ranks, are root's")
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
    def _machines_have_what_the_image_computes_on(self) -> Config:
        gce = self.gce
        gpu, default = gce.gpu, GpuConfig()
        named = "machine_type" in gce.model_fields_set
        n1 = named and gce.machine_type.startswith(("n1-", "custom-"))
        if "gpu" not in gce.model_fields_set and self.image.device == "cuda" and (n1 or not named):
            gpu = default
        if n1 and gpu is not None and "type" not in gpu.model_fields_set:
            gpu = gpu.model_copy(update={"type": "nvidia-tesla-t4"})
        chosen: dict[str, Any] = {"gpu": gpu}
        if not named and gpu is not None and gpu.type == default.type and gpu.count in L4_MACHINES:
            chosen["machine_type"] = L4_MACHINES[gpu.count]
        # A provider sees this section only.
        object.__setattr__(self, "gce", gce.model_copy(update=chosen))
        return self

    @model_validator(mode="after")
    def _every_node_gets_a_gpu_of_this_machine(self) -> Config:
        if self.provider != "local":
            return self
        if self.image.device == "cuda" and "gpus" not in self.local.model_fields_set:
            # A provider sees this section only.
            object.__setattr__(self, "local", self.local.model_copy(update={"gpus": "all"}))
        if isinstance(self.local.gpus, int) and self.local.gpus < self.nodes:
            raise ValueError(
                f"local.gpus is {self.local.gpus}, and nodes is {self.nodes}: each node gets one at least; take "
                f"nodes: 1, which has a rank on every GPU"
            )
        return self

    @model_validator(mode="after")
    def _head_and_workers_fit(self) -> Config:
        if self.provider == "gce" and self.gce.head_machine_type and self.nodes == 1:
            raise ValueError(
                "gce.head_machine_type is for a head beside other nodes, and nodes is 1; set gce.machine_type, or "
                "take more nodes"
            )
        if self.gce.spot is None:
            # A provider sees this section only.
            retried = self.run.retry is not None and "preempted" in self.run.retry.on
            spot = "workers" if self.run.elastic else "all" if retried else "none"
            chosen = self.gce.model_copy(update={"spot": spot})
            object.__setattr__(self, "gce", chosen)
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


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of hvdcloud.yaml."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
