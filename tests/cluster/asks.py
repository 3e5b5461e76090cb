"""A job that reads records through the reader's Service, as one in a Pod does.

Lives here: one GET with the projected token. May use: Python's own library. Never: Freshet, or a way around TLS.

`asks.py URL TOKEN_FILE`; the authority that is trusted is the variable CA, in PEM. Prints the status and the answer's text.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main(url: str, token: str):
    request = urllib.request.Request(url)
    # Read each time: the kubelet renews the file.
    request.add_header("Authorization", f"Bearer {Path(token).read_text()}")
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=os.environ["CA"])) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as e:
        print(e.code, e.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
