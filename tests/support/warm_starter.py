"""What execnet starts for a process of pytest-xdist: the server of warm.py forks one, and this ends with it.

It imports little: its start takes time.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    request = json.dumps({"cwd": os.getcwd(), "env": dict(os.environ)}).encode()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(len(request), 1 << 16))
    socket.send_fds(server, [request], [0, 1, 2])
    for number in (0, 1):
        os.close(number)
    server.recv(1)
