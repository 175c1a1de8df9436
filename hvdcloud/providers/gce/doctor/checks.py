"""What `hvdcloud doctor` looks at before VMs are made. Nothing is changed by it, and nothing is asked twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Check, Finding, Once, failed, failure, fine, setup_hint, unknown, warning
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.google.errors import ApiError, explained
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import as_finding
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.capacity import candidates, networks, quota
from hvdcloud.providers.gce.capacity.preflight import (
    Outlook,
    kinds,
    look_ahead,
    needed_of_zone,
    no_account,
    wrong_settings,
)
from hvdcloud.providers.gce.doctor import permissions
from hvdcloud.providers.gce.doctor.bucket import check_bucket
from hvdcloud.providers.gce.doctor.data import check_data
from hvdcloud.providers.gce.doctor.node_rights import check_node_rights
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
    """Credentials first: what is checked with them comes after them."""
    return list(_Checks(config, spec).all())


class _Checks:
    """All of one configuration, with what they share."""

    def __init__(self, config: Config, spec: ClusterSpec) -> None:
        self._config = config.gce
        self._limits = config.limits
        self._repository = config.image.repository
        self._data = {name: each for name, each in config.data.items() if each.source.startswith("gs://")}
        self._spec = spec
        self._login = Once(lambda: log_in(config.gce))
        self._outlook = Once(self._look_ahead)

    def all(self) -> Iterator[Check]:
        after_login = {"needs": ("credentials",)}
        of_project: dict[str, Any] = {**after_login, "moot_without": ("project",)}
        of_early = {**of_project, "early": True}
        of_compute: dict[str, Any] = {**of_project, "explained_by": ("APIs", "permissions")}
        yield Check(name="credentials", run=lambda: permissions.check_credentials(self._login), early=True)
        yield Check(name="project", run=lambda: permissions.check_project(self._login()), needs=("credentials",))
        yield Check(name="billing", run=lambda: permissions.check_billing(self._login()), **of_early)
        yield Check(name="APIs", run=lambda: permissions.check_apis(self._login(), self._services()), **of_early)
        yield Check(name="permissions", run=self._permissions, **of_early)
        yield Check(name="service account", run=self._service_account, **of_compute, early=True)
        yield Check(name="node rights", run=self._node_rights, **of_compute, early=True)
        # The first of them needs no answer, and without it the others make no sense.
        yield Check(name="machine", run=self._machine)
        of_machine = {**of_compute, "needs": ("credentials", "machine")}
        yield Check(name="zones", run=self._zones, **of_machine)
        yield Check(name="quota", run=self._quota, **of_machine)
        yield Check(name="name", run=self._name, **of_machine)
        yield Check(name="VM image", run=self._vm_image, **of_machine)
        yield Check(name="network", run=self._network, **of_compute)
        yield Check(name="SSH", run=self._ssh, **of_compute)
        yield Check(name="bucket", run=self._bucket, needs=("credentials",), early=True)
        if self._data:
            yield Check(name="data", run=self._data_sets, needs=("credentials",), early=True)

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
        account = self._config.service_account
        if account is None:
            return as_finding(no_account(self._settings(project="none")))
        return permissions.check_service_account(self._login(), account=account, setup=setup_hint())

    def _node_rights(self) -> Finding:
        if self._config.service_account is None:
            return unknown("not checked: see service account")
        return check_node_rights(
            self._login(),
            account=self._config.service_account,
            repository=self._repository,
            bucket=self._spec.bucket,
            data=[data.source for data in self._data.values()],
            setup=setup_hint(),
        )

    # --- machines -------------------------------------------------------------------------------------------------

    def _machine(self) -> Finding:
        today = datetime.now(timezone.utc).date()
        settings = self._settings(project="none")
        problems = wrong_settings(self._spec, settings, today=today)
        if problems:
            return as_finding(problems)
        nodes = kinds(settings, self._spec)
        message = _described(nodes[0])
        if len(nodes) > 1:
            workers, head = nodes
            alike = (workers.machine_type, workers.gpu_count) == (head.machine_type, head.gpu_count)
            message += f"; the head {'' if alike else f'{_described(head)}, '}{'Spot' if head.spot else 'on demand'}"
        for kind in nodes:
            for notice in catalog.notices(kind.machine_type, kind.gpu_type, kind.gpu_count, today=today):
                return warning(f"{message}; {notice.message}", hint=notice.hint)
        return fine(message)

    def _zones(self) -> Finding:
        found = self._outlook()
        if trouble := self._trouble(found, "zones", "machine_types", "gpu_types"):
            return trouble
        if found.missing:
            return as_finding(found.missing)
        what = needed_of_zone(self._settings(), self._spec)
        message = f"{_listed(found.here)} {'has' if len(found.here) == 1 else 'have'} {what}"
        if found.closed:
            return warning(f"{message}; {found.closed[0]}", hint="the other zones are tried; nothing is to be done")
        return fine(message)

    def _quota(self) -> Finding:
        found = self._outlook()
        if trouble := self._trouble(found, "project", "regions"):
            return trouble
        if not found.here:
            return unknown("not checked: no zones")
        if found.short:
            return as_finding(found.short)
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
        found = self._outlook()
        if trouble := self._trouble(found, "namesakes"):
            return trouble
        if found.namesakes and found.namesakes[0].by_this_cluster:
            return warning(found.namesakes[0].message, hint=found.namesakes[0].hint)
        return as_finding(found.namesakes) if found.namesakes else fine(f"no VM is called {self._spec.node_name(0)}")

    def _vm_image(self) -> Finding:
        found = self._outlook()
        if trouble := self._trouble(found, "image"):
            return trouble
        if found.image:
            return as_finding(found.image)
        return fine(f"{(found.answers['image'] or {}).get('name')}, on a disk of {self._config.disk_gb} GB")

    # --- networks -------------------------------------------------------------------------------------------------

    def _network(self) -> Finding:
        settings, compute, client = self._settings(), self._login().compute(), self._login().client()
        path = request.network_path(settings)
        name = path.rpartition("/")[2]
        network = _there(compute.read, path, f"network {name}", "network")
        if settings.subnetwork is None:
            if network.get("autoCreateSubnetworks") is False:
                hint = "name one of its subnetworks in gce.subnetwork"
                return failed(f"network {name} makes no subnetworks by itself", hint=hint, error=UsageError)
            said = f"{name}, with a subnetwork in every region"
        elif own_name := settings.subnetwork_name:
            with explained(f"look for the subnetworks {own_name}"):
                found = networks.subnetworks(client, settings)
            if not found:
                hint = f"{setup_hint()}; or correct gce.subnetwork"
                raise UsageError(f"network {name} has no subnetwork {own_name} in any region", hint=hint)
            regions = [f"{last_segment(each['region'])} {each.get('ipCidrRange', '')}".rstrip() for each in found]
            said = f"{name}, subnetwork {own_name} in {_listed(sorted(regions))}"
        else:
            path = request.subnetwork_path(settings, settings.subnetwork_region or "")
            one = _there(compute.read, path, f"subnetwork {last_segment(path)}", "subnetwork")
            said = f"{name}, subnetwork {one['name']} {one.get('ipCidrRange', '')}".rstrip()
        return fine(said)

    def _ssh(self) -> Finding:
        login, by_tunnel = self._login(), self._config.ssh.source == ssh_access.IAP
        if by_tunnel:
            ssh_access.check_gcloud()
        asked: list[Callable[[], Any]] = [
            lambda: ssh_access.caller_source(self._config.ssh.source),
            login.client().firewalls,
            # Asked in case that some have to be added: to ask later would take as long again.
            lambda: permissions.check_firewall_rights(login),
        ]
        with explained(f"read the firewall rules of {login.project}"):
            source, existing, refused = side_by_side(lambda ask: ask(), asked, only_reads=True)
        settings = self._settings(ssh_source=source)
        way = "through Identity-Aware Proxy" if by_tunnel else f"from {source}"
        missing = firewall.firewall_bodies(self._spec, settings, existing=existing)
        if missing and refused:
            assert isinstance(refused, Finding)
            return refused
        if not missing:
            return fine(f"{way}; the firewall lets it in")
        return fine(f"{way}; `up` adds {counted(len(missing), 'firewall rule')}")

    # --- what is stored -------------------------------------------------------------------------------------------

    def _bucket(self) -> Finding:
        return check_bucket(self._login(), self._spec.bucket, region=self._first_region())

    def _data_sets(self) -> Finding:
        settings, nodes = self._settings(), self._spec.nodes
        return check_data(self._login(), self._data, settings, nodes=nodes, region=self._first_region())

    # --- what all of them need ------------------------------------------------------------------------------------

    def _look_ahead(self) -> Outlook:
        return look_ahead(self._login().client(), self._spec, self._settings(), zones=self._config.zones)

    def _trouble(self, found: Outlook, *questions: str) -> Finding | None:
        """What kept the API from answering one of these questions."""
        errors = [found.failures[question] for question in questions if question in found.failures]
        refused = [error for error in errors if isinstance(error, CredentialsError)]
        # One that was not asked has no answer either.
        silent = all(found.answers.get(question) is None for question in questions)
        return failure((refused or errors)[0]) if refused or (errors and silent) else None

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


def _there(read: Callable[[str], dict[str, Any]], path: str, what: str, key: str) -> Mapping[str, Any]:
    try:
        return read(path)
    except ApiError as error:
        if error.status == 404:
            hint = f"{setup_hint()}; or correct gce.{key}"
            raise UsageError(f"there is no {what} ({path})", hint=hint) from error
        raise error.as_user_error(doing=f"look at {what}") from error


def _listed(places: Sequence[str]) -> str:
    return some(places, most=4)
