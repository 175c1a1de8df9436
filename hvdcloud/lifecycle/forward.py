"""`hvdcloud forward`: ports of a node at this machine's localhost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.ssh import find_node
from hvdcloud.remote.forward import Forwarder, Ports
from hvdcloud.remote.ssh import Session

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

OPEN_SECONDS = 600.0
"""How long `--open` waits for an answer."""
_LOWEST_PORT = 1024
"""A lower number alone is a node's index: an ordinary user cannot open such a port of this machine."""


def parse(words: Sequence[str]) -> tuple[list[Ports], str]:
    """The ports, and the node: the one word that is none.

    Raises UsageError: no port, two nodes, or a port of this machine twice.
    """
    ports: list[Ports] = []
    nodes: list[str] = []
    for word in words:
        is_port = ":" in word or (word.isascii() and word.isdigit() and int(word[:9]) >= _LOWEST_PORT)
        if is_port:
            ports.append(Ports.parse(word))
        else:
            nodes.append(word)
    if not ports:
        said = f"; {nodes[0]} alone is a node" if nodes else ""
        low = f"{8000 + int(nodes[0])}:{nodes[0]}" if nodes and nodes[0].isdigit() else "6006"
        raise UsageError(f"forward needs a port{said}", hint=f"hvdcloud forward {low}")
    if len(nodes) > 1:
        raise UsageError(f"{nodes[0]} and {nodes[1]} are two nodes", hint="use one hvdcloud forward for each node")
    local = [each.local for each in ports]
    if twice := next((port for port in local if local.count(port) > 1), None):
        raise UsageError(f"port {twice} of this machine is named twice", hint="LOCAL:REMOTE names another: 16006:6006")
    return ports, nodes[0] if nodes else "0"


def forward(context: Context, words: Sequence[str], *, open_browser: bool = False) -> None:
    """Lead ports of this machine to a node's until Ctrl-C.

    Args:
        words: ports (`6006`, `LOCAL:REMOTE`), and a node's name or index; without one, the head.
        open_browser: open the first port in the browser once something answers there.

    Raises:
        UsageError: a port is taken; no such cluster or node, also later.
        NodeError: the node cannot be reached.
    """
    ports, node = parse(words)
    say = context.console.say
    with contextlib.closing(
        Forwarder(ports, find=lambda: Session(find_node(context, node), context.state), say=say)
    ) as forwarder:
        with context.console.waiting("forward", "connecting"):
            name = forwarder.start().node.name
        try:
            for each in ports:
                context.console.answer(f"localhost:{each.local} leads to port {each.remote} of {name} until Ctrl-C")
            for each in ports:
                forwarder.answers(each)
            if open_browser:
                if forwarder.wait_for(ports[0], seconds=OPEN_SECONDS):
                    _open(context, f"http://localhost:{ports[0].local}/")
                else:
                    context.console.warn(f"nothing answered for {OPEN_SECONDS / 60:.0f} minutes; no browser is opened")
            forwarder.wait()
        except KeyboardInterrupt:
            if context.console.live:
                # The shell's prompt would be behind the ^C.
                say("")


def _open(context: Context, url: str) -> None:
    import webbrowser

    try:
        opened = webbrowser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        context.console.warn(f"no browser could be started; open {url}")
