"""One end of a connection between hosts, for tests.

peer.py listen PORT            take one connection, say every line that comes, then how it ended
peer.py send HOST PORT BYTES   send, wait until all has arrived, and print the seconds
peer.py talk HOST PORT         connect, say so, and pass on the lines of standard input
"""

import socket
import sys
import time


def listen(port: int) -> None:
    with socket.create_server(("0.0.0.0", port)) as server:
        print("listening", flush=True)
        connection, (address, _) = server.accept()
    print(f"connected {address}", flush=True)
    size = 0
    try:
        while data := connection.recv(1 << 16):
            size += len(data)
            if data.endswith(b"\n"):
                print(data.decode().strip(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
        return
    connection.sendall(b"done")
    print(f"ended after {size}", flush=True)


def send(host: str, port: int, size: int) -> None:
    with socket.create_connection((host, port), timeout=60) as connection:
        begin = time.perf_counter()
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(4) == b"done"
        print(time.perf_counter() - begin)


def talk(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=2) as connection:
        print("connected", flush=True)
        for line in sys.stdin:
            connection.sendall(line.encode())


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "listen":
        listen(int(arguments[0]))
    elif name == "send":
        send(arguments[0], int(arguments[1]), int(arguments[2]))
    else:
        talk(arguments[0], int(arguments[1]))
