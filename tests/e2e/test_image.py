"""The image as the engine really builds it, and what is and is not in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from docker.errors import ImageNotFound

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.builder import BuildResult, Options, build, find_plan
from hvdcloud.image.engine_stream import BuildEvent
from tests.support.engines import default_gateway
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.engine

Build = Callable[..., BuildResult]

# No requirement may bring any of these in, and nothing else needs them.
COMPILERS = ("gcc", "cc", "g++", "c++", "make", "cmake", "pip", "pip3")


@pytest.fixture
def small(tmp_path: Path, engine: Any, image: str) -> Iterator[Build]:
    """Builds an image with the requirements given; it is removed after the test."""
    built: list[str] = []

    def call(requirements: str | bytes, *, config: dict[str, Any] | None = None) -> BuildResult:
        content = requirements.encode() if isinstance(requirements, str) else requirements
        (tmp_path / "requirements.txt").write_bytes(content)
        image_config = ImageConfig(**(config or {}))
        # Before the build, so that what a failed one leaves is removed too.
        built.append(find_plan(image_config, project_dir=tmp_path).reference)
        return build(image_config, project_dir=tmp_path)

    yield call
    for reference in set(built):
        # By its name, not its id: an image that another session's begins with only loses its name.
        with contextlib.suppress(ImageNotFound):
            engine.images.remove(reference, force=True)


def inside(engine: Any, image: str, *argv: str) -> str:
    """What a command in the image prints."""
    output: bytes = engine.containers.run(image, list(argv[1:]), entrypoint=argv[0], remove=True)
    return output.decode().strip()


def layers(engine: Any, reference: str) -> list[str]:
    found: list[str] = engine.images.get(reference).attrs["RootFS"]["Layers"]
    return found


def test_an_image_that_is_there_is_not_built_again(image: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    events: list[BuildEvent] = []
    again = build(ImageConfig(), project_dir=tmp_path, options=Options(progress=events.append))
    assert (again.reference, again.cached, events) == (image, True, [])


LAUNCHER = 'printf "#!/bin/sh\\n{}\\n" > /usr/local/bin/horovodrun && chmod +x /usr/local/bin/horovodrun'
NO_GLOO = "echo 'gloo_built = lambda: False' >> /opt/venv/lib/python3.11/site-packages/horovod/torch/__init__.py"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (NO_GLOO, "Gloo support has not been built"),
        (LAUNCHER.format("echo cannot initialise >&2; exit 1"), "cannot initialise"),
        (LAUNCHER.format("exit 0"), "Horovod works with Gloo"),
    ],
    ids=["no-gloo", "no-ranks", "none"],
)
def test_the_builds_own_check_fails_for_a_horovod_that_does_not_work(
    image: str, engine: Any, damage: str, message: str
) -> None:
    script = f"{damage} && PATH=/usr/local/bin:$PATH python /opt/hvdcloud/check_horovod.py gloo 2>&1; echo exit code $?"
    printed = inside(engine, image, "sh", "-c", script)
    assert message in printed
    assert printed.endswith("exit code 0" if message.startswith("Horovod works") else "exit code 1")


def test_neither_compiler_nor_pip_nor_caches_nor_host_keys_are_in_the_image(image: str, engine: Any) -> None:
    found = inside(engine, image, "sh", "-c", f"for tool in {' '.join(COMPILERS)}; do command -v $tool; done; true")
    assert found == ""
    unwanted = r"-name '*.whl' -o -name '*.a' -o -name 'ssh_host_*' -o -name ca-bundle.crt -o -path '*/.cache/*'"
    unwanted += r" -o -path '/var/lib/apt/lists/*' -o -path '/var/cache/apt/*' -o -path '/tmp/*' -o -path '/opt/tools'"
    assert inside(engine, image, "sh", "-c", f"find / -xdev \\( {unwanted} \\) -print") == ""


def test_torch_is_the_cpu_build_and_nothing_of_cuda_came_along(image: str, engine: Any) -> None:
    listing = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = inside(engine, image, "python", "-c", listing).split()
    assert {"torch", "horovod", "numpy", "scikit-learn"} <= set(installed)
    assert [name for name in installed if name.startswith(("nvidia", "triton", "cuda"))] == []
    assert inside(engine, image, "python", "-c", "import torch; print(torch.__version__)") == "2.13.0+cpu"
    assert engine.images.get(image).attrs["Size"] < 1.4e9


def test_the_node_program_has_a_python_of_its_own(image: str, engine: Any) -> None:
    code = "import sys, hvdcloud.node, google.cloud.storage; print(sys.prefix, 'torch' in sys.modules)"
    assert inside(engine, image, "/opt/hvdcloud/venv/bin/python", "-I", "-c", code) == "/opt/hvdcloud/venv False"
    finder = "import importlib.util as u; print(u.find_spec('hvdcloud'))"
    assert inside(engine, image, "python", "-c", finder) == "None"


def test_changed_requirements_change_one_layer_and_no_other(engine: Any, image: str, small: Build) -> None:
    first, second = small("idna==3.10\n"), small("idna==3.11\n")
    ours, theirs = layers(engine, first.reference), layers(engine, second.reference)
    assert ours[:-1] == theirs[:-1] == layers(engine, image)[:-1]
    assert ours[-1] != theirs[-1]


def test_a_requirement_comes_before_what_the_image_has_and_its_scripts_are_on_the_path(
    engine: Any, small: Build, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("tabulate\n")
    built = small("-r more.txt\npackaging==25.0\n")
    assert inside(engine, built.reference, "python", "-c", "import packaging; print(packaging.__version__)") == "25.0"
    printed = inside(engine, built.reference, "sh", "-c", "command -v tabulate && echo a b | tabulate")
    assert printed.startswith("/opt/requirements/bin/tabulate\n")


@pytest.fixture
def repositories(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[str]:
    """URL of two Git repositories, `one` and `two`, each with a package of its name; builds reach it."""
    served = tmp_path_factory.mktemp("served")
    for name in ("one", "two"):
        work = tmp_path_factory.mktemp(name)
        write(work, {"setup.py": SETUP.format(name), f"{name}.py": f"where = '{name} of a repository'\n"})
        as_somebody = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        for arguments in (("init", "-q"), ("add", "."), (*as_somebody, "commit", "-qm", "first")):
            subprocess.run(["git", "-C", work, *arguments], check=True)
        subprocess.run(["git", "clone", "-q", "--bare", work, served / name], check=True)
        subprocess.run(["git", "-C", served / name, "update-server-info"], check=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer((default_gateway(engine), 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"git+http://hvdcloud-secret@{server.server_name}:{server.server_port}"
        server.shutdown()
        thread.join()


SETUP = "from setuptools import setup\nsetup(name='{0}', version='1', py_modules=['{0}'])\n"
SOURCES = """[project]
name = "mine"
version = "1"
scripts = {say = "mine:say"}
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.nightly
def test_pip_reads_what_a_requirements_file_may_hold_in_the_projects_folder(
    engine: Any, small: Build, repositories: str, tmp_path: Path
) -> None:
    hosts = repositories.partition("@")[2].partition(":")[0]
    write(
        tmp_path,
        {
            "pyproject.toml": SOURCES,
            "src/mine/__init__.py": "def say(): print('mine', 1)\n",
            # Built among the project's other files.
            "lib/setup.py": f"import pathlib\nassert pathlib.Path('../VERSION').exists()\n{SETUP.format('lib')}",
            "lib/lib.py": "where = 'a package of the project'\n",
            "VERSION": "1",
            "my reqs/x.txt": "tabulate\n",
            "more.txt": "-climits.txt\n",
            "limits.txt": "idna==3.10\n",
        },
    )
    lines = ['-r "my reqs/x.txt"', "-r \\", "more.txt", "-e .", "./lib", "id\\", "na"]
    lines += [f"one @ {repositories}/one", f"-e {repositories}/two#egg=two", f"--trusted-host {hosts}"]
    built = small("\r\n".join(lines).encode("utf-16"))
    code = "import idna, lib, one, tabulate, two; print(idna.__version__, lib.where, one.where, two.where, sep='; ')"
    said = "3.10; a package of the project; one of a repository; two of a repository"
    assert inside(engine, built.reference, "python", "-c", code) == said
    # What `run` sends is what ranks import, whatever has changed since.
    assert small((tmp_path / "requirements.txt").read_bytes()).cached
    write(tmp_path, {"src/mine/__init__.py": "def say(): print('mine', 2)\n"})
    assert small((tmp_path / "requirements.txt").read_bytes()).cached
    nodes = {str(tmp_path): {"bind": "/workspace", "mode": "ro"}}
    printed = engine.containers.run(built.reference, [], entrypoint="say", remove=True, volumes=nodes)
    assert printed == b"mine 2\n"
    # Neither the project's code nor the password of a URL stays in the image.
    assert inside(engine, built.reference, "ls", "-A", "/workspace") == ""
    assert found_in(engine, built.reference, "hvdcloud-secret", "two of a repository") == {"two of a repository"}


def test_an_editable_package_that_is_compiled_is_refused_with_what_to_write(small: Build, tmp_path: Path) -> None:
    setup = "from setuptools import Extension, setup\nsetup(name='fast', ext_modules=[Extension('fast', ['fast.c'])])\n"
    write(tmp_path, {"setup.py": setup, "fast.c": "int fast;\n"})
    with pytest.raises(
        ImageError, match=r"-e compiles \./fast\S*\.so in the project's folder.*: install it without -e"
    ):
        small("-e .\n")


def test_a_requirement_that_does_not_exist_fails_with_pips_own_lines(small: Build) -> None:
    with pytest.raises(ImageError) as raised:
        small("hvdcloud-no-such-package==9.9\n")
    assert raised.value.code == ExitCode.IMAGE
    assert "satisfies the requirement hvdcloud-no-such-package==9.9" in raised.value.message
    assert "ERROR: No matching distribution found for hvdcloud-no-such-package==9.9" in raised.value.details
    assert "image.requirements" in raised.value.hint


def test_a_requirement_cannot_replace_torch(small: Build) -> None:
    with pytest.raises(ImageError, match=r"Cannot install torch==2\.12\.0") as raised:
        small("torch==2.12.0\n")
    assert "(constraint) torch==2.13.0+cpu" in raised.value.details


def test_local_wheels_and_the_ca_bundle_serve_the_build_and_stay_outside(
    engine: Any, image: str, small: Build, tmp_path: Path
) -> None:
    import certifi

    marker = f"marker-{secrets.token_hex(16)}"
    system = next((os.environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if name in os.environ), certifi.where())
    (tmp_path / "ca.crt").write_text(f"# {marker}\n{Path(system).read_text()}")
    folder = tmp_path / "wheels"
    folder.mkdir()
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(place).glob("torch-*.whl"):
            shutil.copy(wheel, folder)
    wheel = make_wheel(folder, project="hvdcloud_e2e", content="answer = 42\n")
    built = small(
        # idna comes from the index, through the bundle.
        "hvdcloud_e2e\nidna==3.10\n",
        config={"find_links": "wheels", "ca_bundle": "ca.crt"},
    )
    assert inside(engine, built.reference, "python", "-c", "import hvdcloud_e2e as e; print(e.answer)") == "42"
    # With no layer of its own but the last, it has nothing that is deleted again.
    assert layers(engine, built.reference)[:-1] == layers(engine, image)[:-1]
    # The first is what the search itself has to find.
    assert found_in(engine, built.reference, "answer = 42", marker) == {"answer = 42"}
    history = str(engine.images.get(built.reference).history())
    assert wheel.name not in history
    assert marker not in history
    assert "/ca.crt" not in history


def found_in(engine: Any, reference: str, *needles: str) -> set[str]:
    """Those of these words that any file of the image has."""
    words = " ".join(f"-e '{needle}'" for needle in needles)
    search = f"LC_ALL=C grep -raohF --exclude-dir=proc --exclude-dir=sys {words} / | sort -u"
    return set(inside(engine, reference, "sh", "-c", search).splitlines())


def test_two_builds_of_one_image_at_once_both_get_it(small: Build) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda _: small("idna==3.9\n"), range(2)))
    assert results[0].image_id == results[1].image_id
    assert sorted(result.cached for result in results) == [False, True]
