"""Why a server cannot be reached, where libraries say only that it cannot: its name or its certificate."""

import socket
import ssl

from artifacts.errors import chain_of

_DATES = (9, 10)
"""Codes of OpenSSL for a certificate that is not yet valid, and for one that has expired."""


def why_unreachable(error: BaseException) -> tuple[str, str, str] | None:
    """Returns what was found, what is expected and a remedy if a name or a certificate is the reason; else None.

    Args:
        error: An error of a connection, raised from the reason.
    """
    for link in chain_of(error):
        if isinstance(link, socket.gaierror):
            found = f"its name cannot be resolved ({link.strerror})"
            return found, "a name that the name servers know", "check the address and /etc/resolv.conf"
        if isinstance(link, ssl.SSLCertVerificationError) and hasattr(link, "verify_code"):  # aiohttp's lacks it
            found = f"its certificate is refused ({link.verify_message})"
            remedy = "check the address, or name the authority that signed it in AWS_CA_BUNDLE (S3) or SSL_CERT_FILE"
            if link.verify_code in _DATES:
                remedy = "renew it on the server, or set this machine's clock if that is wrong"
            return found, "a certificate that is trusted and valid now", remedy
    return None
