"""The text of PDF and HTML files, in a process of its own: see sandbox.py.

The libraries are imported when they are needed, within the limits of the document that needs them.
"""

from __future__ import annotations

import resource
import signal
import sys
from contextlib import closing, suppress
from multiprocessing.connection import Connection

from arkv_sglang.batch.types import BatchError, describe

OK, FAILED = b"+", b"-"
# A busy machine makes a file wait, but not for ever.
WALL_PER_CPU_S = 20


class Unreadable(BatchError):
    """The file is no document."""


def pdf_text(data: bytes) -> str:
    """All pages, a blank line between them. Raises Unreadable."""
    from pypdfium2 import PdfDocument, PdfiumError
    from pypdfium2.raw import FPDF_ERR_PASSWORD

    try:
        pdf = PdfDocument(data)
    except PdfiumError as error:
        if error.err_code == FPDF_ERR_PASSWORD:
            raise Unreadable("the PDF is encrypted and needs a password; decrypt it") from None
        raise Unreadable(f"the PDF is damaged, or none at all ({_reason(error)})") from None
    pages: list[str] = []
    for number in range(len(pdf)):
        try:
            with closing(pdf[number]) as page, closing(page.get_textpage()) as text:
                pages.append(text.get_text_bounded())
        except PdfiumError as error:
            raise Unreadable(
                f"page {number + 1} of the PDF is damaged ({_reason(error)})"
            ) from None
    empty = sum(not page.strip() for page in pages)
    # A scan often has a page or two of real text, a cover say, that is not the document.
    if empty * 2 > len(pages):
        raise Unreadable(
            f"{empty} of {len(pages)} pages of the PDF have no text, so it seems to be scanned; "
            "run text recognition (OCR) on it"
        )
    # PDFium writes U+0002 for a hyphen at the end of a line, and takes the word's halves together.
    return "\n\n".join(pages).replace("\r\n", "\n").replace("\x02", "")


def html_text(data: bytes) -> str:
    """What a reader would see, paragraphs kept. Raises Unreadable."""
    from resiliparse.extract.html2text import extract_plain_text

    text: str = extract_plain_text(_decoded(data), preserve_formatting=True)
    return text


def _decoded(data: bytes) -> str:
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else _declared(data)
    if encoding is None:
        raise Unreadable(
            "the HTML is not UTF-8 and declares no other encoding; convert it to UTF-8"
        )
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"the HTML is not {encoding}, as it declares to be (byte {error.start}); "
            "convert it to UTF-8"
        ) from None


def _declared(data: bytes) -> str | None:
    """Python's name of the encoding that the page declares."""
    from resiliparse.parse.encoding import map_encoding_to_html5
    from resiliparse.parse.html import HTMLTree

    # As far as a browser looks for it.
    document = HTMLTree.parse(data[:1024].decode("latin-1")).document
    assert document is not None
    for meta in document.query_selector_all("meta[charset], meta[http-equiv=content-type i]"):
        label = meta.getattr("charset") or str(meta.getattr("content")).partition("charset=")[2]
        if encoding := map_encoding_to_html5(label.strip(), fallback_utf8=False):
            return str(encoding)
    return None


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")


KINDS = {"PDF": pdf_text, "HTML": html_text}


def main(descriptor: int, cpu_s: float, memory_bytes: int) -> None:
    """Answer pairs of messages, a kind and the bytes of a file, until the other side closes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(descriptor) as connection, suppress(EOFError):
        while True:
            read = KINDS[connection.recv_bytes().decode()]
            _limit(cpu_s)
            try:
                reply = OK + read(connection.recv_bytes()).encode()
            except Unreadable as error:
                reply = FAILED + str(error).encode()
            except Exception as error:
                reply = FAILED + f"the file cannot be read ({describe(error)})".encode()
            _limit(0)
            connection.send_bytes(reply)


def _limit(cpu_s: float) -> None:
    """Nothing handles the signals of these timers, so they end the process, wherever it hangs."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, cpu_s * WALL_PER_CPU_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
