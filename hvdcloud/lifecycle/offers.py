"""`hvdcloud offers`: the cluster that hvdcloud.yaml asks for, and others like it, with their prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import HvdcloudError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hvdcloud.config.model import Config
    from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
    from hvdcloud.providers.gce.capacity.offers import Facts, Kind, Offer

RETRY_SECONDS = 3.0
"""Quotas are good to know, and not worth a long wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersResult:
    """Cheapest first, one for each zone."""

    nodes: int
    hours: float
    """That `Offer.dollars` is for."""
    prices_as_of: date | None
    """None: nothing has a price here."""
    offers: tuple[Offer, ...]
    notices: tuple[str, ...]


def offers(config: Config, *, hours: float, gpu: str | None) -> OffersResult:
    """What the API cannot be asked about stays unknown; a notice says why.

    Args:
        hours: how long the cluster would be there.
        gpu: only nodes with this GPU.

    Raises:
        UsageError: the machine type or a GPU is not in the catalogue.
    """
    if config.provider == "local":
        notice = (
            "provider local: the nodes are containers on this machine and cost nothing; --provider gce shows prices"
        )
        return OffersResult(nodes=config.nodes, hours=hours, prices_as_of=None, offers=(), notices=(notice,))
    from hvdcloud.providers.gce import ssh_access
    from hvdcloud.providers.gce.capacity import offers as gce
    from hvdcloud.providers.gce.capacity import preflight
    from hvdcloud.providers.gce.money import prices
    from hvdcloud.providers.gce.settings import settings_of

    today = datetime.now(timezone.utc).date()
    source = config.gce.ssh.source
    settings = settings_of(
        config.gce,
        config.limits,
        project=config.gce.project or "",
        # This machine's own address decides nothing here, and to find it out takes the internet.
        ssh_source="0.0.0.0/0" if source == ssh_access.AUTO else source,
    )
    kinds = gce.kinds(settings, gpu=gpu, today=today)
    facts, notices = _ask(config, kinds, head=settings.head_machine_type)
    found = gce.offers(
        settings,
        nodes=config.nodes,
        hours=hours,
        zones=config.gce.zones,
        facts=facts,
        today=today,
        gpu=gpu,
        image_problem=_image_problem(config),
    )
    problems = preflight.wrong_kinds(settings, today=today)
    own = [f"hvdcloud.yaml: {problem.message}; {problem.hint}" for problem in problems]
    return OffersResult(
        nodes=config.nodes,
        hours=hours,
        prices_as_of=prices.as_of(),
        offers=tuple(found),
        notices=(*own, *notices, *_wasted(config), *prices.notices(), *_price_notices(found)),
    )


def _price_notices(found: Sequence[Offer]) -> list[str]:
    from hvdcloud.providers.gce.money import prices

    unknown = {offer.region for offer in found if offer.region and offer.estimate}
    if not unknown:
        return []
    return [
        f"~ the price is that of {prices.region()}, since this region's is not known; hvdcloud prices refresh gets them"
    ]


def _wasted(config: Config) -> list[str]:
    from hvdcloud.lifecycle.gpus import device_mismatch

    notice = device_mismatch(config)
    return [notice] if notice else []


def _image_problem(config: Config) -> Callable[[str], str | None]:
    """Of a GPU: why the configured image does not run on it."""
    from hvdcloud.image.plan import versions
    from hvdcloud.providers.gce.money import catalog

    image = config.image
    # What image.base has code for, only the image knows.
    row = None if image.base else versions.find(image.framework, image.device, image.version)

    def problem(gpu_type: str) -> str | None:
        if row is None:
            return None
        try:
            versions.check_fits(row, gpu=gpu_type, capability=catalog.gpu(gpu_type).compute_capability)
        except UsageError as error:
            return error.hint
        return None

    return problem


def _ask(config: Config, kinds: Sequence[Kind], *, head: str | None) -> tuple[Facts, list[str]]:
    """Quotas and places, all asked at once."""
    from hvdcloud.google.credentials import google_credentials
    from hvdcloud.google.errors import ApiError
    from hvdcloud.parallel import side_by_side
    from hvdcloud.providers.gce.api.client import ComputeClient
    from hvdcloud.providers.gce.capacity.offers import Facts

    try:
        credentials, project = google_credentials(config.gce.project)
    except HvdcloudError as error:
        return Facts(), [f"quotas are not known: {error.message}; {error.hint}"]
    client = ComputeClient(
        project=project, credentials=credentials, endpoint=config.gce.endpoint, retry_seconds=RETRY_SECONDS
    )
    questions = _questions(client, kinds, head=head)
    failures: dict[str, str] = {}

    def ask(what: str) -> Any:
        try:
            return questions[what]()
        except ApiError as error:
            problem = error.as_user_error(doing=f"ask project {project} for its quotas and machines")
            failures[problem.message] = f"not known: {problem.message}; {problem.hint}"
        except HvdcloudError as error:
            failures[error.message] = f"not known: {error.message}; {error.hint}"
        return None

    answers = dict(zip(questions, side_by_side(ask, list(questions), only_reads=True), strict=True))
    regions = answers["regions"] or ()
    facts = Facts(
        machine_zones=_places(answers["machines"]),
        gpu_zones=_places(answers.get("gpus")),
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in regions},
        project_quotas=answers["project"].get("quotas", ()) if answers["project"] is not None else None,
    )
    return facts, [f"quotas are {reason}" for reason in failures.values()]


def _questions(client: ComputeClient, kinds: Sequence[Kind], *, head: str | None) -> dict[str, Callable[[], Any]]:
    machines = sorted({kind.machine_type for kind in kinds} | ({head} if head else set()))
    gpus = sorted({kind.gpu_type for kind in kinds if kind.gpu_type})
    questions: dict[str, Callable[[], Any]] = {
        "project": client.get_project,
        "regions": client.regions,
        "machines": lambda: client.machine_types(machines),
    }
    if gpus:
        questions["gpus"] = lambda: client.accelerator_types(gpus)
    return questions


def _places(answer: Aggregated | None) -> Mapping[str, set[str]] | None:
    """Name → zones. None where a zone did not answer: then the catalogue is the better guess."""
    from hvdcloud.providers.gce.api.client import zone_of

    if answer is None or answer.unseen:
        return None
    found: dict[str, set[str]] = {}
    for item in answer.items:
        found.setdefault(str(item["name"]), set()).add(zone_of(item))
    return found
