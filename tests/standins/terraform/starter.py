"""What Terraform starts as the provider: it has warm.py's process fork one, and ends with it.

Args: the socket, and the provider's own. Run with `python -IS`; imports little, since it is started very often.
"""

import array
import os
import signal
import socket
import sys
from json import dumps

# As Terraform's plugins do: Ctrl-C in a terminal reaches them too, and Terraform tells them what to do.
signal.signal(signal.SIGINT, signal.SIG_IGN)
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    connection.connect(sys.argv[1])
except OSError:
    # The process that installed the stand-in has ended.
    os.execv(sys.executable, [sys.executable, "-m", "tests.standins.terraform.provider", *sys.argv[2:]])
# Without pathlib, which takes as long as all the rest.
asked = dumps({"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))]
connection.sendmsg([b"%08x" % len(asked)], files)
connection.sendall(asked)
# Of a provider that was killed there is nothing.
ended = connection.recv(1)
os._exit(ended[0] if ended else 1)
