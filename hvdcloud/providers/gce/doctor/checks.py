"""What is checked before VMs are made. Nothing is changed by it, and nothing is asked twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.checks import (
    Check,
    Finding,
    NoAnswerError,
    Once,
    Severity,
    failed,
    fine,
    setup_hint,
    unknown,
    warning,
)
from hvdcloud.errors import CredentialsError, NodeError, UsageError
from hvdcloud.google.errors import ApiError
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.capacity.availability import zone_candidates
from hvdcloud.providers.gce.capacity.outlook import check_account, check_settings, look_ahead
from hvdcloud.providers.gce.doctor import account
from hvdcloud.providers.gce.doctor.account import log_in
from hvdcloud.providers.gce.doctor.bucket import check_bucket
from hvdcloud.providers.gce.doctor.data import check_data
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import last_segment, region_of
from hvdcloud.providers.gce.plan import request
from hvdcloud.providers.gce.settings import Settings, kind_of, settings_of
from hvdcloud.units import some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


def _check(
    name: str, run: Callable[[], Finding], severity: Severity = Severity.BLOCKS, *, see: tuple[str, ...] = ()
) -> Check:
    """A check that asks Google, whose silence proves nothing: planning and making nodes ask it again, and longer."""

    def asked() -> Finding:
        try:
            return run()
        except NodeError as error:
            raise NoAnswerError(error.message, hint=error.hint, details=error.details) from error

    return Check(name=name, run=asked, severity=severity, see=see)


class Checks:
    """What account and project allow, whether and where the nodes can be made, the bucket and the data sets."""

    def __init__(self, config: Config, spec: ClusterSpec) -> None:
        self._config = config.gce
        self._limits = config.limits
        self._repository = config.image.repository
        self._data = {name: each for name, each in config.data.items() if each.source.startswith("gs://")}
        self._spec = spec
        self._today = datetime.now(timezone.utc).date()
        self._login = Once(lambda: log_in(config.gce))
        self._outlook = Once(
            lambda: look_ahead(
                self._login().client(), spec, self._settings(), zones=config.gce.zones, today=self._today
            )
        )

    def all(self) -> Iterator[Check]:
        """Each check, which asks nothing before it runs."""
        login = ("credentials",)
        project = (*login, "project")
        compute = (*project, "permissions")
        machine = ("machine", *compute)
        # What `testIamPermissions` says is no proof: a grant with a condition does not show there, nor does a new one.
        of_account = Severity.WARNS if self._config.service_account else Severity.BLOCKS
        yield _check("credentials", lambda: account.check_credentials(self._login))
        yield _check("project", lambda: account.check_project(self._login()), see=login)
        yield _check("permissions", self._permissions, Severity.WARNS, see=project)
        yield _check("service account", self._service_account, of_account, see=compute)
        yield _check("machine", self._machine)
        for what in ("zones", "quota", "name", "VM image"):
            yield _check(what, partial(lambda what: self._outlook().findings[what], what), see=machine)
        yield _check("network", self._network, see=compute)
        yield _check("SSH", self._ssh)
        yield _check("firewall", lambda: account.check_firewall_rights(self._login()), Severity.WARNS, see=compute)
        yield _check("bucket", self._bucket, see=login)
        if self._data:
            yield _check("data", self._data_sets, see=login)

    # --- what we may do -------------------------------------------------------------------------------------------

    def _permissions(self) -> Finding:
        return account.check_permissions(self._login(), external_address=self._settings().needs_external_ip)

    def _service_account(self) -> Finding:
        check_account(self._settings(project="none"))
        named = self._config.service_account or ""
        return account.check_service_account(self._login(), account=named, setup=setup_hint())

    # --- machines -------------------------------------------------------------------------------------------------

    def _machine(self) -> Finding:
        settings = self._settings(project="none")
        check_settings(self._spec, settings, today=self._today)
        head, other = (kind_of(settings, index) for index in (0, self._spec.nodes - 1))
        machine, (gpu_type, gpu_count) = catalog.machine(other.machine_type), other.gpus
        gpus = f", {gpu_count} {gpu_type}" if gpu_type else ""
        spot = f", Spot{'' if head.spot else '; the head on demand'}" if other.spot else ""
        message = f"{machine.name}: {machine.vcpus} vCPUs, {machine.memory_gb:g} GB{gpus}{spot}"
        gpu = catalog.gpu(gpu_type) if gpu_type else None
        if gpu and gpu.ends:
            ends = f"{gpu.name} ends {gpu.ends}: no VM with it can be made or started from then on"
            return warning(f"{message}; {ends}", hint=f"take {gpu.instead}")
        return fine(message)

    # --- networks -------------------------------------------------------------------------------------------------

    def _network(self) -> Finding:
        settings = self._settings()
        path, subnetwork = request.network_path(settings), settings.subnetwork
        name = last_segment(path)
        try:
            network = self._login().client().network(path)
        except ApiError as error:
            if error.status == 404:
                return failed(f"there is no network {name} ({path})", hint=f"{setup_hint()}; or correct gce.network")
            if error.status == 403:
                # In a host project of others, a user may make VMs and not look at the network.
                return unknown(f"may not be looked at: {error.cause}", hint=error.hint, error=CredentialsError)
            raise error.as_user_error(doing=f"look at network {name} ({path})") from error
        if subnetwork is None and network.get("autoCreateSubnetworks") is False:
            hint = "name one of its subnetworks in gce.subnetwork"
            return failed(f"network {name} makes no subnetworks by itself", hint=hint)
        if subnetwork is None:
            return fine(f"{name}, with a subnetwork in every region")
        if settings.subnetwork_region:
            return fine(f"{name}, subnetwork {last_segment(subnetwork)} in {settings.subnetwork_region}")
        available = self._outlook().available
        if refused := available.failures.get("subnetworks"):
            raise refused
        regions = available.subnetwork_regions
        if regions is not None and not regions:
            message = f"network {name} has no subnetwork {subnetwork} in any region"
            return failed(message, hint=f"{setup_hint()}; or correct gce.subnetwork")
        where = "" if regions is None else f" in {some(sorted(regions), most=4)}"
        return fine(f"{name}, subnetwork {last_segment(subnetwork)}{where}")

    def _ssh(self) -> Finding:
        if self._config.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {ssh_access.caller_source(self._config.ssh.source)}")

    # --- what is stored -------------------------------------------------------------------------------------------

    def _bucket(self) -> Finding:
        return check_bucket(self._login(), self._spec.bucket, region=self._first_region())

    def _data_sets(self) -> Finding:
        settings, nodes = self._settings(), self._spec.nodes
        return check_data(self._login(), self._data, settings, nodes=nodes, region=self._first_region())

    # --- what all of them need ------------------------------------------------------------------------------------

    def _settings(self, *, project: str = "") -> Settings:
        return settings_of(self._config, self._limits, project=project or self._login().project)

    def _first_region(self) -> str | None:
        """Where nodes are tried first, as far as that is known without asking."""
        zones: Sequence[str] = self._config.zones
        # What is wrong with the machine type, its own check tells.
        with contextlib.suppress(UsageError):
            home = registry_region(self._repository or "")
            zones = zone_candidates(self._settings(), nodes=self._spec.nodes, zones=zones, home=home)
        return region_of(zones[0]) if zones else None
