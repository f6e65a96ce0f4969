import socket

server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 7100))
server.listen()
while True:
    client, _ = server.accept()
    data = client.recv(1000)
    while data:
        client.sendall(data.upper())
        data = client.recv(1000)
    client.close()
