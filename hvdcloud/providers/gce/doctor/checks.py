"""What is checked before VMs are made. Nothing is changed by it, and nothing is asked twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from hvdcloud.checks import (
    Check,
    Finding,
    NoAnswerError,
    Once,
    Severity,
    failed,
    fine,
    first_of,
    setup_hint,
    unknown,
    warning,
)
from hvdcloud.errors import CredentialsError, NodeError, UsageError
from hvdcloud.google.errors import ApiError, explained
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.capacity import candidates, networks, quota
from hvdcloud.providers.gce.capacity.outlook import (
    Outlook,
    check_account,
    check_settings,
    kinds,
    look_ahead,
    needed_of_zone,
)
from hvdcloud.providers.gce.doctor import permissions
from hvdcloud.providers.gce.doctor.bucket import check_bucket
from hvdcloud.providers.gce.doctor.data import check_data
from hvdcloud.providers.gce.doctor.permissions import log_in
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import last_segment, region_of
from hvdcloud.providers.gce.plan import firewall, request
from hvdcloud.providers.gce.settings import Settings, settings_of
from hvdcloud.units import counted, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config

_SOMEWHERE = "192.0.2.1/32"
"""In the place of our own public address where that does not matter (RFC 5737)."""


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """What account and project allow, whether and where the nodes can be made, the bucket and the data sets."""
    return list(_Checks(config, spec).all())


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


class _Checks:
    """All of one configuration, with what they share."""

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
        self._source = Once(lambda: ssh_access.caller_source(config.gce.ssh.source))

    def all(self) -> Iterator[Check]:
        login = ("credentials",)
        project = (*login, "project")
        compute = (*project, "APIs", "permissions")
        machine = ("machine", *compute)
        # What `testIamPermissions` says is no proof: a grant with a condition does not show there, nor does a new one.
        account = Severity.WARNS if self._config.service_account else Severity.BLOCKS
        yield _check("credentials", lambda: permissions.check_credentials(self._login))
        yield _check("project", lambda: permissions.check_project(self._login()), see=login)
        yield _check("billing", lambda: permissions.check_billing(self._login()), see=project)
        yield _check("APIs", lambda: permissions.check_apis(self._login(), self._services()), see=project)
        yield _check("permissions", self._permissions, Severity.WARNS, see=project)
        yield _check("service account", self._service_account, account, see=compute)
        yield _check("machine", self._machine)
        yield _check("zones", self._zones, see=machine)
        yield _check("quota", self._quota, see=machine)
        yield _check("name", self._name, see=machine)
        yield _check("VM image", self._vm_image, see=machine)
        yield _check("network", self._network, see=compute)
        yield _check("SSH", self._ssh)
        yield _check("firewall", self._firewall, Severity.WARNS, see=("SSH", *compute))
        yield _check("bucket", self._bucket, see=login)
        if self._data:
            yield _check("data", self._data_sets, see=login)

    # --- what we may do -------------------------------------------------------------------------------------------

    def _services(self) -> list[str]:
        names = ["compute", "iam", "storage"]
        if "-docker.pkg.dev" in (self._repository or ""):
            names.append("artifactregistry")
        if self._config.ssh.source == ssh_access.IAP:
            names.append("iap")
        return [f"{name}.googleapis.com" for name in names]

    def _permissions(self) -> Finding:
        return permissions.check_permissions(self._login(), external_address=self._settings().needs_external_ip)

    def _service_account(self) -> Finding:
        check_account(self._settings(project="none"))
        account = self._config.service_account or ""
        return permissions.check_service_account(self._login(), account=account, setup=setup_hint())

    # --- machines -------------------------------------------------------------------------------------------------

    def _machine(self) -> Finding:
        settings = self._settings(project="none")
        check_settings(self._spec, settings, today=self._today)
        nodes = kinds(settings, self._spec)
        message = _described(nodes[0])
        if len(nodes) > 1:
            workers, head = nodes
            alike = (workers.machine_type, workers.gpu_count) == (head.machine_type, head.gpu_count)
            message += f"; the head {'' if alike else f'{_described(head)}, '}{'Spot' if head.spot else 'on demand'}"
        for kind in nodes:
            for notice in catalog.notices(kind.machine_type, kind.gpu_type, kind.gpu_count, today=self._today):
                return warning(f"{message}; {notice.message}", hint=notice.hint)
        return fine(message)

    def _zones(self) -> Finding:
        found = self._told("zones", "machine_types", "gpu_types")
        if found.missing:
            return first_of(found.missing)
        what = needed_of_zone(self._settings(), self._spec)
        message = f"{_listed(found.here)} {'has' if len(found.here) == 1 else 'have'} {what}"
        if found.closed:
            return warning(f"{message}; {found.closed[0]}", hint="the other zones are tried; nothing is to be done")
        return fine(message)

    def _quota(self) -> Finding:
        found = self._told("project", "regions")
        if not found.here:
            return unknown("not checked: no zones")
        if found.short:
            return first_of(found.short)
        regions = list(dict.fromkeys(map(region_of, found.roomy)))
        message = f"room for {counted(self._spec.nodes, 'node')} in {_listed(regions)}: {self._needs(found)}"
        if found.scarce:
            hint = "the other regions are tried; more quota is more places"
            return warning(f"{message}; {found.scarce[0]}", hint=hint)
        return fine(message)

    def _needs(self, found: Outlook) -> str:
        """The scarcest two of what the nodes take, in the first region that has room."""
        region = region_of(found.roomy[0])
        regional, project = found.available.regional_quotas.get(region, ()), found.available.project_quotas or ()
        quotas = {
            str(each["metric"]): float(each.get("limit", 0)) - float(each.get("usage", 0))
            for each in (*project, *regional)
        }
        needed = quota.needs(self._settings(), nodes=self._spec.nodes)
        needed = [need for need in needed if need.metric in quotas]
        scarce = sorted(needed, key=lambda need: (quotas[need.metric] / max(1, need.amount), "GPU" not in need.metric))
        said = ", ".join(f"{need.metric} {need.amount} of {quotas[need.metric]:g} free" for need in scarce[:2])
        return said or "the API names no limit"

    def _name(self) -> Finding:
        found = self._told("namesakes")
        return found.namesakes[0] if found.namesakes else fine(f"no VM is called {self._spec.node_name(0)}")

    def _vm_image(self) -> Finding:
        found = self._told("image")
        if found.image:
            return first_of(found.image)
        return fine(f"{(found.answers['image'] or {}).get('name')}, on a disk of {self._config.disk_gb} GB")

    # --- networks -------------------------------------------------------------------------------------------------

    def _network(self) -> Finding:
        settings, login = self._settings(), self._login()
        path = request.network_path(settings)
        name, own_name = last_segment(path), settings.subnetwork
        what, key = f"network {name} ({path})", "network"
        try:
            network = login.compute().read(path)
            if own_name is None:
                if network.get("autoCreateSubnetworks") is False:
                    hint = "name one of its subnetworks in gce.subnetwork"
                    return failed(f"network {name} makes no subnetworks by itself", hint=hint)
                return fine(f"{name}, with a subnetwork in every region")
            what, key = f"subnetwork {own_name}", "subnetwork"
            found = networks.subnetworks(login.client(), settings)
        except ApiError as error:
            if error.status == 404:
                return failed(f"there is no {what}", hint=f"{setup_hint()}; or correct gce.{key}")
            if error.status == 403:
                # In a host project of others, a user may make VMs and not look at the network.
                return unknown(f"may not be looked at: {error.cause}", hint=error.hint, error=CredentialsError)
            raise error.as_user_error(doing=f"look at {what}") from error
        if not found:
            message = f"network {name} has no subnetwork {own_name} in any region"
            return failed(message, hint=f"{setup_hint()}; or correct gce.subnetwork")
        regions = [f"{last_segment(each['region'])} {each.get('ipCidrRange', '')}".rstrip() for each in found]
        return fine(f"{name}, subnetwork {found[0]['name']} in {_listed(sorted(regions))}")

    def _ssh(self) -> Finding:
        if self._config.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {self._source()}")

    def _firewall(self) -> Finding:
        login, settings = self._login(), self._settings(ssh_source=self._source())
        # The rights are asked for in case that rules have to be added: to ask later would take as long again.
        asked: list[Callable[[], Any]] = [login.client().firewalls, lambda: permissions.check_firewall_rights(login)]
        with explained(f"read the firewall rules of {login.project}"):
            existing, refused = side_by_side(lambda ask: ask(), asked, only_reads=True)
        missing = firewall.firewall_bodies(self._spec, settings, existing=existing)
        if missing and refused is not None:
            return cast(Finding, refused)
        return fine(f"`up` adds {counted(len(missing), 'rule')}" if missing else "its rules let in what nodes need")

    # --- what is stored -------------------------------------------------------------------------------------------

    def _bucket(self) -> Finding:
        return check_bucket(self._login(), self._spec.bucket, region=self._first_region())

    def _data_sets(self) -> Finding:
        settings, nodes = self._settings(), self._spec.nodes
        return check_data(self._login(), self._data, settings, nodes=nodes, region=self._first_region())

    # --- what all of them need ------------------------------------------------------------------------------------

    def _told(self, *questions: str) -> Outlook:
        """What the API says. Raises HvdcloudError: it refused one of these questions, or answered none."""
        found = self._outlook()
        errors = [found.failures[question] for question in questions if question in found.failures]
        # One that was not asked has no answer either.
        silent = all(found.answers.get(question) is None for question in questions)
        for error in errors:
            if silent or isinstance(error, CredentialsError):
                raise error
        return found

    def _settings(self, *, project: str = "", ssh_source: str = "") -> Settings:
        """Without the caller's address: whether there is an external one is known without asking for it."""
        if not ssh_source:
            try:
                given = self._config.ssh.source
                ssh_source = _SOMEWHERE if given == ssh_access.AUTO else ssh_access.caller_source(given)
            except UsageError:
                # The check of SSH says so.
                ssh_source = _SOMEWHERE
        return settings_of(self._config, self._limits, project=project or self._login().project, ssh_source=ssh_source)

    def _first_region(self) -> str | None:
        """Where nodes are tried first, as far as that is known without asking."""
        # What is wrong with the machine type, its own check tells.
        try:
            home = registry_region(self._repository or "")
            zones = candidates.zone_candidates(
                self._settings(), nodes=self._spec.nodes, zones=self._config.zones, home=home
            )
        except UsageError:
            zones = self._config.zones
        return region_of(zones[0]) if zones else None


def _described(kind: NodeKind) -> str:
    """`n1-standard-8: 8 vCPUs, 30 GB, 1 nvidia-tesla-t4, Spot`."""
    machine = catalog.machine(kind.machine_type)
    gpu_type, gpu_count = kind.gpus
    gpus = f", {gpu_count} {gpu_type}" if gpu_type else ""
    return f"{machine.name}: {machine.vcpus} vCPUs, {machine.memory_gb:g} GB{gpus}{', Spot' if kind.spot else ''}"


def _listed(places: Sequence[str]) -> str:
    return some(places, most=4)
