"""Runs in a container, under any Python from 3.6 and without its packages: `relay.py` sends it as text.

It listens at 127.0.0.1:PORT and carries each connection over its stdin and stdout, until stdin ends. A frame: 4 bytes
number of the connection, 4 bytes length, data; no data = that side has closed. The first frame says that it listens.
"""

import errno
import os
import select
import socket
import struct
import sys
import time

MOST = 64  # connections
SEND_SEC = 10  # for a client to take what it is sent
FREE_SEC = 10  # for the program of an earlier phase to end, which was stopped with the agent's processes


def send(number: int, data: bytes) -> None:
    view = memoryview(struct.pack(">II", number, len(data)) + data)
    while view:
        view = view[os.write(1, view) :]


def listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a later phase of the same trial
    give_up = time.monotonic() + FREE_SEC
    while True:
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(MOST)
            return listener
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                raise
        time.sleep(0.1)


def read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def deliver(buffer: bytearray, connections: "dict[int, socket.socket]") -> "list[int]":
    """Send the clients the frames that are complete. Returns the connections that the other side has closed."""
    closed = []
    while len(buffer) >= 8:
        number, length = struct.unpack(">II", bytes(buffer[:8]))
        if len(buffer) < 8 + length:
            break
        data = bytes(buffer[8 : 8 + length])
        del buffer[: 8 + length]
        try:
            if data and number in connections:
                connections[number].sendall(data)
        except OSError:  # gone, or it does not read
            data = b""
        if not data and number in connections:
            closed.append(number)
    return closed


def main(port: int) -> None:
    listener, buffer, begun = listening(port), bytearray(), 0
    connections = {}  # type: dict[int, socket.socket]
    send(0, b"ready")
    while True:
        numbers = {connection.fileno(): number for number, connection in connections.items()}
        ready, _, _ = select.select([0, listener.fileno(), *numbers], [], [])
        ended = []
        for one in ready:
            if one in numbers:
                data = read(connections[numbers[one]])
                send(numbers[one], data)
                if not data:
                    ended.append(numbers[one])
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            buffer += data
            ended += deliver(buffer, connections)
        for number in set(ended):
            connections.pop(number).close()
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            if len(connections) < MOST:
                begun += 1
                connection.settimeout(SEND_SEC)
                connections[begun] = connection
            else:
                connection.close()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except BrokenPipeError:  # the stream was cut: no failure of this program
        sys.exit(0)
