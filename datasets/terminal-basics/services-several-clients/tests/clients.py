import socket
import struct


def connect():
    client = socket.create_connection(("127.0.0.1", 7100), timeout=10)
    return client, client.makefile("rb")


def said(client, text):
    client[0].sendall(text)
    return client[1].readline()


clients = [connect() for _ in range(20)]
for number, client in enumerate(reversed(clients)):
    assert said(client, b"hello %d\n" % number) == b"HELLO %d\n" % number
for client in clients[:5]:  # gone with a reset in the middle of a line
    client[0].sendall(b"half a li" * 1000)
    client[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client[1].close()
    client[0].close()
for client in clients[5:10]:
    client[1].close()
    client[0].close()
late = connect()
assert said(late, b"late\n") == b"LATE\n"
late[0].sendall(b"in ")
late[0].settimeout(1)
try:
    early = late[0].recv(100)
except TimeoutError:
    early = b""
assert early == b"", "answered half a line"
late[0].settimeout(10)
late = late[0], late[0].makefile("rb")
assert said(late, b"two pieces\nand ") == b"IN TWO PIECES\n"
assert said(late, b"more\n") == b"AND MORE\n"
assert said(clients[15], b"x" * 50000 + b"\n") == b"X" * 50000 + b"\n"
print("all right", 6 * 7)
