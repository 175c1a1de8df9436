"""From where the nodes' sshd can be reached, and the way there through Identity-Aware Proxy."""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import socket
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, urlopen

from hvdcloud.errors import NodeError, UsageError

AUTO = "auto"
IAP = "iap"
IAP_RANGE = "35.235.240.0/20"
"""Where Identity-Aware Proxy connects from (https://cloud.google.com/iap/docs/using-tcp-forwarding)."""
ADDRESS_URL_VARIABLE = "HVDCLOUD_ADDRESS_URL"
ADDRESS_URLS = ("https://checkip.amazonaws.com", "https://api.ipify.org", "https://ipv4.icanhazip.com")
"""Each answers with the caller's public IPv4 address and nothing else."""
ANSWER_SECONDS = 5.0
REACH_SECONDS = 20.0

SOMEWHERE = "192.0.2.1/32"
"""In the place of the caller's address where only that it is public matters (RFC 5737)."""

# Not `is_private`, which counts documentation's ranges and others that no network uses.
_PRIVATE = tuple(
    ipaddress.IPv4Network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8")
)


def fetch_text(url: str) -> str:
    """The first bytes of a page.

    Raises:
        OSError: no answer within ANSWER_SECONDS, or another status than 200.
        ValueError: not a URL.
    """
    with urlopen(url, timeout=ANSWER_SECONDS) as answer:
        data: bytes = answer.read(100)
    return data.decode("ascii", errors="replace").strip()


def caller_source(source: str, *, fetch: Callable[[str], str] = fetch_text) -> str:
    """What the firewall is to let in: gce.ssh.source, where that is `auto` the caller's address: `198.51.100.7/32`.

    Args:
        fetch: reads a URL.

    Raises UsageError: the caller's address cannot be found out.
    """
    if source != AUTO:
        return source
    override = os.environ.get(ADDRESS_URL_VARIABLE)
    failures = []
    for url in (override,) if override else ADDRESS_URLS:
        try:
            return f"{ipaddress.IPv4Address(fetch(url))}/32"
        except (OSError, ValueError) as error:
            failures.append(f"{urlsplit(url).netloc or url}: {error}")
    message = "gce.ssh.source is auto, but this machine's public address cannot be found out"
    hint = "set gce.ssh.source to your network's range, such as 198.51.100.0/24, or to iap"
    raise UsageError(message, hint=hint, details="\n".join(failures))


def is_public(source: str) -> bool:
    """Whether a range of IPv4 addresses is outside private networks and VPNs."""
    network = ipaddress.IPv4Network(source, strict=False)
    return not any(network.subnet_of(private) for private in _PRIVATE)


def check_reachable(address: str, port: int, *, source: str, given: str) -> None:
    """Whether anything at all answers at a node's port, before a boot is paid for; a refusal is an answer.

    Args:
        source: what the firewall lets in.
        given: gce.ssh.source.

    Raises NodeError: nothing answers.
    """
    try:
        socket.create_connection((address, port), timeout=REACH_SECONDS).close()
    except ConnectionError:
        return
    except OSError as error:
        learned = ", the address of this machine as the internet sees it" if given == AUTO else ""
        proxy = " through the proxy of HTTPS_PROXY" if learned and getproxies().get("https") else ""
        raise NodeError(
            f"port {port} of {address} cannot be reached from here: {error.strerror or error}; Google's firewall "
            f"lets in {source}{learned}{proxy}",
            hint="write gce.ssh.source: iap (this network may let no such connection out), then hvdcloud up again",
        ) from error


def iap_proxy_command(project: str, zone: str, instance: str, port: int) -> str:
    """The program whose standard input and output lead to a port of an instance without an external address."""
    return shlex.join(
        [
            *("gcloud", "compute", "start-iap-tunnel", instance, str(port), "--listen-on-stdin"),
            # Its warning, at every connection, is that NumPy would make it faster.
            *(f"--project={project}", f"--zone={zone}", "--verbosity=error"),
        ]
    )


def check_gcloud() -> None:
    """Raise UsageError if the program of the tunnels is not on this machine."""
    if shutil.which("gcloud") is None:
        message = "gce.ssh.source is iap, which needs gcloud, and there is no gcloud on this machine"
        hint = "install it (https://cloud.google.com/sdk/docs/install) and gcloud auth login, or set gce.ssh.source"
        raise UsageError(message, hint=hint)
