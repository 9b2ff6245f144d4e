"""A TCP proxy that loses what a server answers: what a client has said arrives, and the answer does not."""

import socket
import threading


class DeafProxy:
    """Passes bytes both ways until lose_answers(); from then on nothing comes back, and the client's connection breaks once
    the server has answered what it was asked since."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target, self._deaf = (host, int(port)), threading.Event()
        self.lost = threading.Event()  # An answer was.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self):
        self._deaf.set()

    def close(self):
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source, sink, answers):
        try:
            while data := source.recv(1 << 16):
                # What is shorter acknowledges frames of HTTP/2, and is no answer of a call.
                if answers and self._deaf.is_set():
                    if len(data) > 64:
                        self.lost.set()
                        break
                    continue
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
