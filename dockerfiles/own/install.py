"""Makes a node of an image that is not ours: sshd, Open MPI where there is none, and who finds what. Nothing else.

Runs under the image's own Python; prepare.py has found out what is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HOME = Path("/opt/hvdcloud")
SHADOW = Path("/etc/shadow")


def install_packages(packages: list[str]) -> None:
    """Debian's packages; a source of packages that is no longer there does not matter."""
    if not packages:
        return
    subprocess.run(["apt-get", "update", "-q", "-o", "Acquire::Retries=3"], check=False)
    options = ["-y", "-q", "-o", "Dir::Cache::Archives=/mnt", "--no-install-recommends"]
    command = ["apt-get", "install", *options, *packages]
    done = subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
    if done.returncode != 0:
        sys.exit(f"apt-get could not install {' '.join(packages)}")
    for folder in (*Path("/var/lib/apt/lists").iterdir(), *Path("/var/cache/apt").iterdir()):
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    if "openssh-server" in packages:
        # A host key in an image would be the same one on every node: the entrypoint makes one at a node's first start.
        for key in Path("/etc/ssh").glob("ssh_host_*"):
            key.unlink()


def let_root_in() -> None:
    """sshd takes no key of an account that is locked, as a `!` before its password says (auth.c, allowed_user)."""
    before = SHADOW.read_text()
    after = re.sub(r"^root:!+\*?", "root:*", before, flags=re.MULTILINE)
    if after != before:
        SHADOW.write_text(after)


def find_driver() -> None:
    """The GPU driver on Container-Optimized OS: the entrypoint looks there, and so do SSH sessions."""
    Path("/etc/ld.so.conf.d/hvdcloud-driver.conf").write_text("/usr/local/nvidia/lib64\n")


def find_more() -> None:
    """Lets the image's Python find what requirements.txt installs, and Horovod if it was compiled for this image."""
    site = Path(sysconfig.get_path("purelib"))
    site.mkdir(parents=True, exist_ok=True)
    for name in ("hvdcloud_requirements.pth", "hvdcloud_requirements.py"):
        shutil.copyfile(HOME / name, site / name)
    for packages in Path("/opt/horovod").glob("lib/python3.*/site-packages"):
        # Unlike a path alone, this minds the .pth files that are in there.
        (site / "hvdcloud_horovod.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")


def main() -> None:
    install_packages(json.loads((HOME / "node.json").read_text())["packages"])
    let_root_in()
    find_driver()
    find_more()
    for folder in ("/run/sshd", "/workspace", "/var/lib/hvdcloud"):
        Path(folder).mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    main()
