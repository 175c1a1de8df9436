"""Files with credentials in a project's folder are not sent, neither to nodes nor to builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.image.plan.own_dockerfile import read
from hvdcloud.image.plan.requirements import digest_of
from hvdcloud.image.plan.sources import find_sources
from hvdcloud.project_files import build_files, code_files
from hvdcloud.remote.code import list_code

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
GOOGLE = json.dumps({"type": "service_account", "private_key": "x"}, indent=2)
LOGIN = json.dumps({"type": "authorized_user", "refresh_token": "x"})

PRIVATE = {
    ".env": "TOKEN=x",
    ".env.local": "TOKEN=x",
    ".env.production": "TOKEN=x",
    ".envrc": "export TOKEN=x",
    ".ENV": "TOKEN=x",
    "conf/prod.env": "TOKEN=x",
    ".netrc": "x",
    ".git-credentials": "x",
    ".pypirc": "x",
    ".npmrc": "x",
    "web/.npmrc": "x",
    ".ssh/config": "x",
    ".ssh/old/id": "x",
    "backup/.ssh/known_hosts": "x",
    ".aws/credentials": "x",
    ".config/gcloud/credentials.db": "x",
    ".docker/config.json": "{}",
    ".kube/config": "x",
    ".huggingface/token": "x",
    ".cache/huggingface/token": "x",
    "application_default_credentials.json": "{}",
    "id_rsa": "x",
    "keys/id_ed25519": "x",
    "keys/server.pem": KEY,
    "keys/server.key": CERTIFICATE + KEY,
    "keys/deploy": KEY.replace("OPENSSH ", ""),
    "service-account.json": GOOGLE,
    "lab-1234.json": LOGIN,
    "store.p12": "x",
}
HONEST = {
    ".env.example": "TOKEN=",
    ".env.sample": "TOKEN=",
    ".gitignore": "",
    ".config/settings.json": "{}",
    ".docker/Dockerfile": "FROM scratch",
    "ca.pem": CERTIFICATE,
    "config.json": '{"type": "service_account"}',
    "data/labels.json": '[{"type": "cat"}]',
    "environment.yml": "name: x",
    "env/lib.py": "x",
    "keys/id_rsa.pub": "ssh-rsa AAAA",
    "src/netrc.py": "x",
    "test_keys.py": f'KEY = """\\\n{KEY}"""',
    "token": "x",
    "train.py": "x",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def sent(folder: Path) -> set[str]:
    return {file.path for file in list_code(folder)}


def built(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in build_files(folder) if path.is_file()}


@pytest.mark.parametrize("name", PRIVATE)
def test_credentials_are_neither_sent_nor_built_in_and_the_user_hears_of_them(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: PRIVATE[name], "train.py": "x"})
    said: list[str] = []
    assert [file.path for file in list_code(tmp_path, warn=said.append)] == ["train.py"]
    assert built(tmp_path) == {"train.py"}
    (warning,) = said
    assert warning.startswith("not sent, since it looks like credentials: ")
    named = warning.partition(": ")[2].partition(";")[0]
    assert name == named or name.startswith(f"{named}/")
    # The line that it tells is one that helps.
    line = warning.partition("a line ")[2].partition(" in ")[0]
    (tmp_path / ".dockerignore").write_text(f"{line}\n")
    assert sent(tmp_path) == {".dockerignore", name, "train.py"}
    assert built(tmp_path) == {".dockerignore", name, "train.py"}


def test_everything_else_is_sent(tmp_path: Path) -> None:
    write(tmp_path, HONEST)
    said: list[str] = []
    assert {file.path for file in list_code(tmp_path, warn=said.append)} == set(HONEST)
    assert built(tmp_path) == set(HONEST)
    assert said == []


@pytest.mark.parametrize(
    "lines", ["*\n!*", "**\n!**", "*\n!src", "*\n!src/**", "!*.*", "!.env\n.env\nsrc/.env", "# !.env"]
)
def test_a_line_that_does_not_name_it_sends_no_credentials(tmp_path: Path, lines: str) -> None:
    write(tmp_path, {"src/.env": "x", "src/train.py": "x", ".dockerignore": f"{lines}\n"})
    assert "src/.env" not in sent(tmp_path) | built(tmp_path)
    assert "src/train.py" in sent(tmp_path) & built(tmp_path)


@pytest.mark.parametrize("where", ["home", "home/..", "/", "link"])
def test_the_home_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    home = tmp_path / "people" / "home"
    write(home, {"hvdcloud.yaml": "name: a", "train.py": "x", "project/train.py": "x", "Dockerfile": "FROM scratch"})
    (tmp_path / "people" / "link").symlink_to("home")
    monkeypatch.setenv("HOME", str(home))
    folder = tmp_path / "people" / where
    for listed in (code_files, build_files):
        with pytest.raises(UsageError, match="holds the home folder"):
            next(iter(listed(folder)))
    assert sent(home / "project") == {"train.py"}


@pytest.mark.parametrize("text", ["-r .env\n", "-c .netrc\n", "-r keys/id_rsa\n", "--requirement link\n"])
def test_requirements_bring_no_credentials_into_a_build(tmp_path: Path, text: str) -> None:
    write(tmp_path, {".env": "TOKEN=x", ".netrc": "x", "keys/id_rsa": KEY, "requirements.txt": text})
    (tmp_path / "link").symlink_to(".env")
    with pytest.raises(UsageError, match=r"holds credentials, and image\.requirements"):
        digest_of(tmp_path, "requirements.txt", includes=True)


def test_no_file_with_credentials_is_the_dockerfile(tmp_path: Path) -> None:
    write(tmp_path, {".env": "TOKEN=x"})
    (tmp_path / "Dockerfile").symlink_to(".env")
    for name in (".env", "Dockerfile"):
        with pytest.raises(UsageError, match=r"holds credentials, and image\.dockerfile"):
            read(tmp_path, name)


def test_certificates_come_without_a_private_key(tmp_path: Path) -> None:
    write(tmp_path, {"both.pem": CERTIFICATE + KEY, "ca.pem": CERTIFICATE})
    with pytest.raises(UsageError, match="holds a private key"):
        find_sources(find_links=None, ca_bundle="both.pem", project_dir=tmp_path)
    found = find_sources(find_links=None, ca_bundle="ca.pem", project_dir=tmp_path)
    assert found.ca_bundle == tmp_path / "ca.pem"
