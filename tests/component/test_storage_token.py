"""What nodes without an identity are lent: a token for one run's folder that ends soon, and what happens when it does.

The real node program, google-auth and the storage client; Google's token service and Cloud Storage are stand-ins.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import run_prefix
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.cluster.state import ClusterState
from hvdcloud.config.model import Config
from hvdcloud.errors import CredentialsError
from hvdcloud.google.storage_token import ENDPOINT_VARIABLE
from hvdcloud.lifecycle import storage_tokens
from hvdcloud.node.uploads.loop import write_report
from hvdcloud.providers.local.platform import LocalPlatform
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.open import open_bucket
from hvdcloud.storage.token_file import TokenMissingError
from tests.standins.google_account import Account, service_account
from tests.standins.storage import StorageServer, running_server
from tests.standins.token_service import TokenService, token_service
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster

BUCKET = "gs://bucket/team"
FOLDER = run_prefix("digits", RUN)
LOGIN = "ya29.the-users-own-access-token"
WAITS = "uploads wait for a storage token; hvdcloud status renews it"


@dataclass
class Google:
    """The services, and this machine's login."""

    account: Account
    tokens: TokenService
    storage: StorageServer

    def lend(self, *, reads: tuple[str, ...] = ()) -> str:
        """What `run` sends to the nodes."""
        platform = LocalPlatform(Config(name="digits"))
        text = platform.storage_credentials(BUCKET, endpoint=self.storage.url, writes=FOLDER, reads=reads)
        assert text is not None
        return text


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with (
        service_account(LOGIN) as account,
        token_service(subject=LOGIN) as tokens,
        running_server(tmp_path / "storage", buckets=("bucket", "lake", "public")) as storage,
    ):
        account.write(tmp_path / "key.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv(ENDPOINT_VARIABLE, tokens.url)
        storage.boundary = tokens.allows
        yield Google(account, tokens, storage)


@pytest.fixture(params=[2])
def cluster(request: pytest.FixtureRequest, cloud: Google) -> Iterator[NodeCluster]:
    """Of two nodes, or as many as the test says: each of them loads Google's library."""
    with node_cluster(nodes=request.param) as cluster:
        cluster.bucket_url, cluster.bucket_endpoint = BUCKET, cloud.storage.url
        yield cluster


ONE_NODE = pytest.mark.parametrize("cluster", [1], indirect=True)


def stored(cloud: Google) -> dict[str, bytes]:
    """What is in the bucket below the run's folder."""
    cloud.storage.boundary = None
    try:
        bucket = open_bucket(BUCKET, endpoint=cloud.storage.url)
        names = [info.name for info in bucket.list(FOLDER)]
        return {name.removeprefix(FOLDER): bucket.read(name) for name in names}
    finally:
        cloud.storage.boundary = cloud.tokens.allows


def checkpoints(cloud: Google) -> dict[str, bytes]:
    return {name: data for name, data in stored(cloud).items() if ".hvdcloud/" not in name}


def renew(cluster: NodeCluster, cloud: Google) -> None:
    """As the laptop does."""
    text = cloud.lend()
    for name in cluster.names:
        assert RUN in cluster.verb(name, "token", payload={"tokens": {RUN: text}})["runs"]


def let_it_end(cluster: NodeCluster, cloud: Google) -> None:
    """The laptop sleeps: its last token has ended, and no other comes."""
    cloud.tokens.lifetime = 1.0
    renew(cluster, cloud)
    cloud.tokens.lifetime = 3600.0
    until(lambda: list(cloud.tokens.given.values())[-1].expiry < time.time(), seconds=5, what="the token's end")


def start(cluster: NodeCluster, cloud: Google, then: str) -> None:
    """Start the job of `writes`, and wait for its first checkpoints."""
    cluster.start_run(writes(then), credentials=cloud.lend())
    until(lambda: len(checkpoints(cloud)) == len(cluster.names), seconds=60, what="the first checkpoints")


def writes(then: str) -> str:
    """A job in which each rank leaves a checkpoint, does something, and leaves another."""
    return (
        "import os, pathlib, time\n"
        "rank, folder = os.environ['HOROVOD_RANK'], pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'])\n"
        f"(folder / f'first-{{rank}}').write_text('first ' * 1000)\nprint('wrote', flush=True)\n{then}\n"
        "(folder / f'last-{rank}').write_text('last ' * 1000)\n"
    )


def everything(cluster: NodeCluster) -> dict[str, bytes]:
    """What that job leaves in the bucket."""
    folders = ["", *(f"@node-{index}/" for index in range(1, len(cluster.names)))]
    return {
        f"{folder}{name}-{rank}": f"{name} ".encode() * 1000
        for rank, folder in enumerate(folders)
        for name in ("first", "last")
    }


# -- the token ---------------------------------------------------------------------------------------------------------


def test_the_token_is_exchanged_for_the_users_own_which_stays_here(cloud: Google) -> None:
    lent = json.loads(cloud.lend())
    assert lent["token"] in cloud.tokens.given
    assert [lent[key] for key in ("refresh_token", "client_secret", "client_id")] == [""] * 3
    assert LOGIN not in json.dumps(lent)
    assert [asked["subject_token"] for asked in cloud.tokens.asked] == [LOGIN]


def test_the_token_reads_the_runs_data_in_any_bucket_and_writes_none(cloud: Google, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    cloud.storage.boundary = None
    others = ("sets/train/a", "sets/train2/a", "sets/val/a", "private")
    for bucket, names in {"bucket": ("team/x",), "lake": others, "public": ("a",)}.items():
        for name in names:
            open_bucket(f"gs://{bucket}", endpoint=cloud.storage.url).write(name, b"data")
    cloud.storage.boundary = cloud.tokens.allows
    sources = ["gs://lake/sets/train", "gs://lake/sets/val", "gs://public", "file:///data/val"]
    for checkpoints_in in (BUCKET, tmp_path.as_uri()):
        platform = LocalPlatform(Config(name="digits"))
        assert platform.lends_token(checkpoints_in, *sources, endpoint=cloud.storage.url)
        text = platform.storage_credentials(checkpoints_in, endpoint=cloud.storage.url, writes=FOLDER, data=sources)
        assert text is not None
        file.write_text(text)
        lake, public = (
            open_bucket(url, endpoint=cloud.storage.url, credentials_file=file) for url in ("gs://lake", "gs://public")
        )
        assert [info.name for info in lake.list("sets/train/")] == ["sets/train/a"]
        assert lake.read("sets/train/a") == lake.read("sets/val/a") == public.read("a") == b"data"
        for name in ("sets/train2/a", "private"):
            with pytest.raises(CredentialsError, match="was refused"):
                lake.read(name)
        for bucket in (lake, public):
            with pytest.raises(CredentialsError, match="was refused"):
                bucket.write("sets/train/a", b"damage")
        with pytest.raises(CredentialsError, match="was refused"):
            list(lake.list("sets/"))


def test_the_token_opens_the_runs_folder_and_nothing_else(cloud: Google, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    cloud.storage.boundary = None
    anyone = open_bucket("gs://bucket", endpoint=cloud.storage.url)
    for name in (f"team/digits/{RUN}/mine", "team/digits/20260101-000000-abcdef/earlier", "team/other/1/theirs", "x"):
        anyone.write(name, b"data")
    cloud.storage.boundary = cloud.tokens.allows
    file.write_text(cloud.lend(reads=("digits/",)))

    own = open_bucket("gs://bucket", endpoint=cloud.storage.url, credentials_file=file)
    own.write(f"team/digits/{RUN}/new", b"data")
    assert own.read(f"team/digits/{RUN}/mine") == b"data"
    assert [info.name for info in own.list(f"team/digits/{RUN}/")] == [
        f"team/digits/{RUN}/mine", f"team/digits/{RUN}/new",
    ]  # fmt: skip
    # A checkpoint is written once; what describes the run is replaced.
    for name in ("mine", "new"):
        with pytest.raises(CredentialsError, match="was refused"):
            own.write(f"team/digits/{RUN}/{name}", b"damage")
    for data in (b"first", b"second"):
        own.write(f"team/digits/{RUN}/.hvdcloud/manifest-0.json", data)
    assert own.read(f"team/digits/{RUN}/mine") == b"data"
    # What the run continues from is read, and not written.
    assert own.read("team/digits/20260101-000000-abcdef/earlier") == b"data"
    for name in ("team/digits/20260101-000000-abcdef/earlier", "team/digits2/x", "team/other/1/theirs", "x"):
        with pytest.raises(CredentialsError, match="was refused"):
            own.write(name, b"damage")
    for name in ("team/other/1/theirs", "x"):
        with pytest.raises(CredentialsError, match="was refused"):
            own.read(name)
    for prefix in ("", "team/", "team/other/"):
        with pytest.raises(CredentialsError, match="was refused"):
            list(own.list(prefix))


def test_without_a_prefix_the_folder_is_the_runs_all_the_same(cloud: Google, tmp_path: Path) -> None:
    platform = LocalPlatform(Config(name="digits"))
    text = platform.storage_credentials("gs://bucket", endpoint=cloud.storage.url, writes=FOLDER)
    (given,) = cloud.tokens.given.values()
    assert {rule.bucket for rule in given.rules} == {"bucket"}
    assert [rule.prefix for rule in given.rules] == [FOLDER, f"{FOLDER}.hvdcloud/"]
    assert text is not None


def test_a_token_whose_end_google_does_not_say_ends_with_the_login(cloud: Google) -> None:
    cloud.tokens.says_lifetime = False
    lent = json.loads(cloud.lend())
    ends = time.mktime(time.strptime(lent["expiry"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert 3000 < ends - time.time() <= 3600


def test_a_login_that_was_revoked_is_told_with_what_to_type(cloud: Google) -> None:
    cloud.tokens.refuses = True
    with pytest.raises(CredentialsError, match="the login has been revoked") as raised:
        cloud.lend()
    assert "GOOGLE_APPLICATION_CREDENTIALS" in raised.value.hint


def test_a_token_that_has_ended_is_not_sent_and_the_next_one_is(cloud: Google, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    cloud.tokens.lifetime = 2.0
    file.write_text(cloud.lend())
    bucket = open_bucket(BUCKET, endpoint=cloud.storage.url, credentials_file=file)
    bucket.write(f"{FOLDER}a", b"1")
    time.sleep(2.1)
    before = len(cloud.storage.requests)
    with pytest.raises(TokenMissingError, match="uploads wait for a storage token"):
        bucket.write(f"{FOLDER}b", b"2")
    assert len(cloud.storage.requests) == before
    cloud.tokens.lifetime = 3600.0
    file.write_text(cloud.lend())
    bucket.write(f"{FOLDER}b", b"2")


@pytest.mark.filterwarnings("ignore:.*load_credentials_from_file:DeprecationWarning")
def test_an_earlier_image_reads_the_token(cloud: Google, tmp_path: Path) -> None:
    """With what it has used since before there were such tokens."""
    from google.auth import load_credentials_from_file
    from google.cloud.storage import Client

    file = tmp_path / "credentials.json"
    file.write_text(cloud.lend())
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    own, _ = load_credentials_from_file(str(file), scopes=[scope])
    client = Client(project="none", credentials=own, client_options={"api_endpoint": cloud.storage.url})
    client.bucket("bucket").blob(f"team/{FOLDER}x").upload_from_string(b"data")


# -- a run -------------------------------------------------------------------------------------------------------------


def test_nothing_of_the_login_reaches_a_node(cluster: NodeCluster, cloud: Google, tmp_path: Path) -> None:
    start(cluster, cloud, "time.sleep(600)")
    key = json.loads((tmp_path / "key.json").read_text())["private_key"]
    secret = {LOGIN.encode(), key.encode(), json.dumps(key)[1:40].encode(), b"PRIVATE KEY"}
    (token,) = cloud.tokens.given
    holders = []
    for path in cluster.base.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            assert not [each for each in secret if each in data], path
            if token.encode() in data:
                holders.append(path)
    assert {path.name for path in holders} == {"credentials.json"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in holders] == [0o600, 0o600]
    for pid in (cluster.supervisor(), *map(cluster.agent, cluster.names)):
        for what in ("environ", "cmdline"):
            data = Path(f"/proc/{pid}/{what}").read_bytes()
            assert token.encode() not in data
            assert LOGIN.encode() not in data
    assert cluster.verb("n0", "stop", RUN)["result"] == "stopped"
    assert not list(cluster.base.rglob("credentials.json"))


def test_a_run_that_outlives_its_token_waits_says_so_and_continues(
    cluster: NodeCluster, cloud: Google, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    start(cluster, cloud, f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)")
    let_it_end(cluster, cloud)
    gate.touch()
    cluster.wait_for_log(WAITS)
    until(lambda: (state := has_waiting(cluster)) and state["state"] == "finishing", seconds=20, what="nodes that wait")
    look = cluster.verb("n0", "look")
    assert WAITS in [event["event"] for event in look["events"]]
    assert look["state"]["needs_token"] == ["n0", "n1"]
    assert len(checkpoints(cloud)) == 2
    # It wakes up.
    renew(cluster, cloud)
    done = cluster.wait_done()
    assert (done["result"], done["checkpoints"]["complete"], done["checkpoints"]["files"]) == ("succeeded", True, 4)
    assert "needs_token" not in done
    assert checkpoints(cloud) == everything(cluster)
    assert "a storage token has arrived: uploads continue" in cluster.log()
    assert not list(cluster.base.rglob("credentials.json"))


def has_waiting(cluster: NodeCluster) -> dict[str, Any] | None:
    state = cluster.written()
    return state if state.get("needs_token") == cluster.names else None


@ONE_NODE
def test_uploads_of_an_active_run_continue_with_the_next_token(
    cluster: NodeCluster, cloud: Google, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    more = "(folder / f'last-{rank}').write_text('last ' * 1000)"
    wait = "while not os.path.exists({!r}): time.sleep(0.05)"
    start(cluster, cloud, f"{wait.format(str(gate))}\n{more}\n{wait.format(str(tmp_path / 'end'))}")
    let_it_end(cluster, cloud)
    gate.touch()
    until(lambda: has_waiting(cluster), seconds=20, what="nodes that wait")
    assert cluster.state()["state"] == "running"
    renew(cluster, cloud)
    until(lambda: checkpoints(cloud) == everything(cluster), seconds=20, what="the last checkpoints")
    until(lambda: "needs_token" not in cluster.written(), seconds=10, what="the end of waiting")
    assert "needs_token" not in cluster.state()
    (tmp_path / "end").touch()
    assert cluster.wait_done()["checkpoints"]["complete"]


@ONE_NODE
def test_what_a_run_could_not_upload_goes_when_a_token_has_arrived(
    cluster: NodeCluster, cloud: Google, tmp_path: Path
) -> None:
    """Its processes were killed while they waited: no agent is left, and `down` sends a token before it asks."""
    gate = tmp_path / "gate"
    start(cluster, cloud, f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)")
    let_it_end(cluster, cloud)
    gate.touch()
    until(lambda: (state := has_waiting(cluster)) and state["state"] == "finishing", seconds=20, what="nodes that wait")
    # The supervisor first: it would start an agent again.
    for process in (cluster.supervisor(), *map(cluster.agent, cluster.names)):
        os.kill(process, 9)
    for name in cluster.names:
        answer = cluster.verb(name, "flush")["runs"][RUN]
        assert answer["errors"] == [WAITS]
    renew(cluster, cloud)
    for name in cluster.names:
        assert cluster.verb(name, "flush")["runs"][RUN] == {"pending": [], "errors": []}
    assert checkpoints(cloud) == everything(cluster)
    assert not list(cluster.base.rglob("credentials.json"))


@ONE_NODE
def test_a_run_reads_what_it_continues_from(cluster: NodeCluster, cloud: Google) -> None:
    cluster.start_run(writes("pass"), credentials=cloud.lend())
    assert cluster.wait_done()["checkpoints"]["complete"]
    second = RUN.replace("20261121", "20261122")
    platform, folder = LocalPlatform(Config(name="digits")), run_prefix("digits", second)

    def prepare(*reads: str) -> list[dict[str, Any]]:
        token = platform.storage_credentials(BUCKET, endpoint=cloud.storage.url, writes=folder, reads=reads)
        return cluster.prepare(["true"], run=second, resume=RUN, credentials=token)

    assert all("was refused" in answer["error"] for answer in prepare())
    assert [answer["restored"] for answer in prepare("digits/")] == [2]


@ONE_NODE
def test_only_a_token_replaces_a_token(cluster: NodeCluster, cloud: Google, tmp_path: Path) -> None:
    cluster.prepare(["true"], credentials=cloud.lend())
    before = {path: path.read_bytes() for path in cluster.base.rglob("credentials.json")}
    key = (tmp_path / "key.json").read_text()
    for sent in (key, "{}", "[]", "none"):
        assert "is not a storage token" in cluster.verb("n0", "token", payload={"tokens": {RUN: sent}})["error"]
    # Of a run that it does not know, nothing is kept.
    other = "20260101-000000-abcdef"
    assert cluster.verb("n0", "token", payload={"tokens": {other: cloud.lend()}})["runs"].keys() == {RUN}
    assert {path: path.read_bytes() for path in cluster.base.rglob("credentials.json")} == before


@ONE_NODE
def test_a_token_that_comes_after_the_last_upload_is_not_kept(
    cluster: NodeCluster, cloud: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.prepare(["true"], credentials=cloud.lend())
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(cluster.root("n0")))
    # The agent has said so, and is about to delete the token.
    write_report(RUN, UploadReport(complete=True))
    assert cluster.verb("n0", "token", payload={"tokens": {RUN: cloud.lend()}}) == {"runs": {}}
    assert not list(cluster.root("n0").rglob("credentials.json"))


# -- the process that renews -------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterState]:
    """Of a cluster whose engine does not answer."""
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    state = ClusterState("digits")
    state.make()
    state.save(ClusterRecord(id="abcdef"))
    yield state
    storage_tokens.end(state)


def test_one_process_renews_and_nothing_is_left_of_it(state: ClusterState) -> None:
    assert storage_tokens.background_process(state) is None
    storage_tokens.start(state)
    process = until(lambda: storage_tokens.background_process(state), seconds=20, what="the process")
    assert os.getsid(process) == process
    storage_tokens.start(state)
    time.sleep(1.0)
    assert storage_tokens.background_process(state) == process
    storage_tokens.end(state)
    assert storage_tokens.background_process(state) is None
    assert [path.name for path in state.dir.iterdir()] == ["cluster.json"]


def test_it_ends_with_the_cluster_also_where_nobody_tells_it(state: ClusterState) -> None:
    storage_tokens.start(state)
    until(lambda: storage_tokens.background_process(state), seconds=20, what="the process")
    state.forget()
    until(lambda: storage_tokens.background_process(state) is None, seconds=10, what="its end")
    state.save(ClusterRecord(id="another"))
    storage_tokens.start(state)
    until(lambda: storage_tokens.background_process(state), seconds=20, what="the process of the next cluster")


def test_it_imports_nothing_from_the_projects_folder(
    state: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project" / "hvdcloud"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(package.parent)
    storage_tokens.start(state)
    until(lambda: storage_tokens.background_process(state), seconds=20, what="the process")
    assert not (tmp_path / "ran").exists()


# -- what the stand-in takes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"grant_type": "refresh_token"},
        {"subject_token": "another"},
        {"subject_token_type": "urn:ietf:params:oauth:token-type:jwt"},
        {"options": "%7B%7D"},
        {"audience": "x"},
    ],
)
def test_the_token_service_refuses_what_google_does(cloud: Google, change: dict[str, str]) -> None:
    import requests

    cloud.lend()
    sent = cloud.tokens.asked[-1]
    assert requests.post(cloud.tokens.url, data=sent, timeout=10).status_code == 200
    assert requests.post(cloud.tokens.url, data={**sent, **change}, timeout=10).status_code == 400
