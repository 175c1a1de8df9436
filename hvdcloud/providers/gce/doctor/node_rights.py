"""What `hvdcloud doctor` says of the nodes' own rights: by the IAM policies of the image's repository and the bucket.

An account may get a role from a folder or from the organization too, whose policies are not read: what no policy here
grants is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from hvdcloud.checks import Finding, fine, unknown, warning
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.bucket import bucket_and_folder, bucket_policy
from hvdcloud.providers.gce.doctor.permissions import Login, account_of_nodes

Bindings = Sequence[Mapping[str, Any]]
"""`[{"role": "roles/editor", "members": ["serviceAccount:…"]}]`, https://cloud.google.com/iam/docs/reference/rest/v1/Policy"""

_BASIC = ("roles/owner", "roles/editor")
# https://cloud.google.com/artifact-registry/docs/access-control#roles
PULL_ROLES = frozenset(
    (
        *_BASIC,
        "roles/viewer",
        *(f"roles/artifactregistry.{each}" for each in ("reader", "writer", "repoAdmin", "admin")),
    )
)
# https://cloud.google.com/storage/docs/access-control/iam-roles; the legacy ones are what editors of the project have.
_WRITERS = ("objectUser", "objectAdmin", "admin", "legacyBucketOwner", "legacyBucketWriter")
WRITE_ROLES = frozenset(f"roles/storage.{each}" for each in _WRITERS)
"""To add, read, replace and delete."""
ADD_ROLES = WRITE_ROLES | {"roles/storage.objectCreator"}
READ_ROLES = WRITE_ROLES | {"roles/storage.objectViewer"}
_FILE = 'resource.name.extract("/.hvdcloud/{file}")'
RECORDS = " || ".join(
    (
        *(f'{_FILE}.startsWith("{each}-")' for each in ("manifest", "samples")),
        *(f'resource.name.endsWith("/.hvdcloud/{each}")' for each in ("events.jsonl", "state.json", "log")),
    )
)
"""The condition with which nodes may replace objects: what a run has and what is known of it, not its checkpoints.
Terraform's is the same (terraform/identity.tf)."""
_REPOSITORY = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/:@]+)")


def check_node_rights(
    login: Login, *, account: str, repository: str | None, bucket: str, setup: str, data: Sequence[str] = ()
) -> Finding:
    """Whether nodes may pull the image, write checkpoints and read the data sets.

    Args:
        account: e-mail address, or DEFAULT_ACCOUNT.
        repository: `image.repository`; None, or not of Artifact Registry: pulling is not looked at.
        bucket: `gs://BUCKET[/PREFIX]`.
        setup: how to get an account that may.
        data: `gs://BUCKET[/FOLDER]` of each data set.
    """
    email = account_of_nodes(login, account)
    if not email or not bucket.startswith("gs://"):
        return unknown("not checked: see service account and bucket")
    found = _REPOSITORY.match(repository or "")
    name, _ = bucket_and_folder(bucket)
    location, project, images = found.groups() if found else ("", login.project, "")
    questions: list[Callable[[], Mapping[str, Any]]] = [
        lambda: login.api("cloudresourcemanager").post(f"projects/{project}:getIamPolicy", _VERSION),
        lambda: bucket_policy(login, name),
        lambda: login.api("artifactregistry").read(_path(project, location, images), _QUERY) if found else {},
    ]
    others = {source: each for source in data if (each := bucket_and_folder(source)[0]) != name}
    questions += [partial(bucket_policy, login, each) for each in dict.fromkeys(others.values())]
    of_project, of_bucket, of_images, *of_data = side_by_side(_answer, questions, only_reads=True)
    policies = (of_bucket, of_project if project == login.project else None)
    wanted = {"objectCreator": ADD_ROLES, "objectViewer": READ_ROLES, "objectUser": WRITE_ROLES}
    may_use = {
        role: granted(email, roles, project=project, policies=policies, conditional=role == "objectUser")
        for role, roles in wanted.items()
    }
    use = f"gcloud storage buckets add-iam-policy-binding gs://{name} --member=serviceAccount:{email} "
    grants: list[tuple[bool | None, str, str]] = [
        (
            False if False in may_use.values() else None if None in may_use.values() else True,
            f"use the bucket gs://{name}",
            " && ".join(use + _role_words(role) for role, may in may_use.items() if may is False),
        )
    ]
    if found:
        may_pull = granted(email, PULL_ROLES, project=project, policies=(of_images, of_project))
        command = (
            f"gcloud artifacts repositories add-iam-policy-binding {images} --location={location} --project={project} "
            f"--member=serviceAccount:{email} --role=roles/artifactregistry.reader"
        )
        grants.insert(0, (may_pull, f"pull from {found.group()}", command))
    found_policies = dict(zip(dict.fromkeys(others.values()), of_data, strict=True))
    for source, each in others.items():
        of_data_set = (_in_folder(found_policies[each], source), policies[-1])
        # Of a bucket of another project, its policy is often all that there is to see, or not even that.
        if granted(email, READ_ROLES, project=project, policies=of_data_set) is False:
            grants.append((False, f"read {source}", _reading_command(email, each, data)))
    lacking = [(what, command) for may, what, command in grants if may is False]
    if lacking:
        return warning(
            f"no role lets {email}, which nodes run as, {' or '.join(what for what, _ in lacking)}",
            hint=" && ".join(dict.fromkeys(command for _, command in lacking)) if account == email else setup,
        )
    if unclear := [what for may, what, _ in grants if may is None]:
        return unknown(
            f"the IAM policies, as far as they may be read, do not tell whether nodes may {' and '.join(unclear)}"
        )
    if granted(email, WRITE_ROLES, project=project, policies=policies):
        return warning(
            f"{email}, which nodes run as, may delete and replace every checkpoint in gs://{name}; so may each job",
            hint=f"{setup}; then its role there can go: gcloud storage buckets get-iam-policy gs://{name}",
        )
    return fine(f"nodes may {' and '.join(what for _, what, _ in grants)}")


def _reading_command(email: str, bucket: str, data: Sequence[str]) -> str:
    """What lets an account read a data set: `setup` where it has made the account, else its bucket's owner."""
    if email.partition("@")[0] == "hvdcloud":
        return f"write data = {json.dumps(list(data))} into hvdcloud.tfvars, then hvdcloud setup"
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{email}"
    return f"{grant} --role=roles/storage.objectViewer --condition=None"


def _in_folder(policy: Bindings | None, source: str) -> Bindings | None:
    """The policy for this folder: `setup` grants with a condition that names one (terraform/identity.tf)."""
    bucket, folder = bucket_and_folder(source)
    start = re.compile(rf'startsWith\("projects/_/buckets/{re.escape(bucket)}/objects/([^"]*)"\)')

    def holds(binding: Mapping[str, Any]) -> bool:
        found = start.search(str(binding.get("condition", {}).get("expression", "")))
        return found is not None and f"{folder}/".startswith(found[1])

    if policy is None:
        return None
    return [
        {key: value for key, value in each.items() if key != "condition"} if holds(each) else each for each in policy
    ]


def _role_words(role: str) -> str:
    """The role, in words of gcloud's; objectUser only for what nodes have to replace."""
    words = f"--role=roles/storage.{role}"
    # Where a policy has a condition, gcloud asks for one unless it is told that there is none.
    return (
        f"{words} --condition=None"
        if role != "objectUser"
        else f"{words} --condition='title=hvdcloud-run-records,expression={RECORDS}'"
    )


def granted(
    email: str,
    roles: Collection[str],
    *,
    project: str,
    policies: Sequence[Bindings | None],
    conditional: bool = False,
) -> bool | None:
    """Whether one of the policies gives the account one of the roles.

    Args:
        policies: the resource's, then its project's; None: it cannot be read.
        conditional: with a condition will do.

    Returns:
        False if none does; None if that cannot be told: groups, conditions, custom roles, policies that are not read.
    """
    members = {f"serviceAccount:{email}", "allUsers", "allAuthenticatedUsers"}
    basic = {each["role"] for each in policies[-1] or () if members & {*each.get("members", ())}}
    # https://cloud.google.com/storage/docs/access-control/iam#convenience-values
    members |= {f"project{role.rpartition('/')[2].capitalize()}:{project}" for role in basic}
    answers = [None if policy is None else False for policy in policies]
    answers += [
        _gives(binding, members, roles, conditional=conditional) for policy in policies for binding in policy or ()
    ]
    return True if True in answers else None if None in answers else False


def _gives(
    binding: Mapping[str, Any], members: Collection[str], roles: Collection[str], *, conditional: bool
) -> bool | None:
    role, given = str(binding["role"]), binding.get("members", ())
    custom = not role.startswith("roles/")
    if role not in roles and not custom:
        return False
    if any(member in members for member in given):
        return None if custom or ("condition" in binding and not conditional) else True
    others = ("group:", "domain:", "principal:", "principalSet:")
    return None if any(member.startswith(others) for member in given) else False


def _answer(ask: Callable[[], Mapping[str, Any]]) -> Bindings | None:
    try:
        found: Bindings = ask().get("bindings", ())
    except ApiError:
        # The right to run jobs does not include the right to read policies.
        return None
    return found


def _path(project: str, location: str, repository: str) -> str:
    return f"projects/{project}/locations/{location}/repositories/{repository}:getIamPolicy"


# An older version leaves conditions out: https://cloud.google.com/iam/docs/policies#versions
_VERSION = {"options": {"requestedPolicyVersion": 3}}
_QUERY = {"options.requestedPolicyVersion": 3}
