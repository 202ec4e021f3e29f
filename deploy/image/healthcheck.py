"""Ask the admin port of this container whether its process answers: `python healthcheck.py [PORT]`, status 0 or 1."""

import http.client
import ssl
import sys

SECONDS_MAX = 4.0
PORT = 9090


def answers(port: int) -> bool:
    """Report whether /livez answers with 200, over HTTP or, where the port speaks TLS, HTTPS."""
    # The certificate is for the names that others know; this connection does not leave the container.
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    for connection in (
        http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX / 2),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS_MAX / 2, context=unverified),
    ):
        try:
            connection.request("GET", "/livez")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return True
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    sys.exit(not answers(int(sys.argv[1]) if len(sys.argv) > 1 else PORT))
