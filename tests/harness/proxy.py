"""TCP proxy that drops a server's replies: requests arrive, replies do not."""

import socket
import threading


class DeafProxy:
    """Forwards both directions until lose_answers(). Then it drops replies, and closes the client's connection once
    the server has replied."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target, self._deaf = (host, int(port)), threading.Event()
        self.lost = threading.Event()  # Set when a reply was dropped.
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
                # Shorter data acknowledges HTTP/2 frames; it is not the reply of a call.
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
