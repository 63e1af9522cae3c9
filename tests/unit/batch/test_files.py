"""Files of every kind, whole, empty, broken and hostile."""

import io
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.sandbox import Sandbox
from arkv_sglang.batch.types import Document

SCANNED = (
    "{} of {} pages of the PDF have no text, so it seems to be scanned; "
    "run text recognition (OCR) on it"
)


def read(path: Path, **settings: Any) -> dict[str, str]:
    """Text or error by doc_id."""
    documents = open_documents(InputConfig(path=[str(path)], **settings))
    return {d.doc_id: d.text if isinstance(d, Document) else f"! {d.error}" for d in documents}


def pdf(*pages: str, **settings: Any) -> bytes:
    """A page without text gets a drawing."""
    file = io.BytesIO()
    canvas = Canvas(file, **settings)
    for page in pages:
        canvas.rect(100, 100, 200, 200)
        for number, line in enumerate(page.splitlines()):
            canvas.drawString(72, 700 - 20 * number, line)
        canvas.showPage()
    canvas.save()
    return file.getvalue()


def hostile_pdf(operations: int) -> bytes:
    """A few kilobytes that take seconds, or gigabytes, to lay out."""
    content = zlib.compress(b"BT /F 9 Tf 9 9 Td " + b"(ab) Tj " * operations + b"ET", 9)
    page = b"/MediaBox [0 0 99 99] /Resources << /Font << /F << /Type /Font /Subtype /Type1 "
    page += b"/BaseFont /Helvetica >> >> >> /Contents 4 0 R"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R %s >>" % page,
        b"<< /Filter /FlateDecode /Length %d >> stream\n%s\nendstream" % (len(content), content),
    ]
    body = b"".join(b"%d 0 obj %s endobj\n" % pair for pair in enumerate(objects, 1))
    return b"%PDF-1.4\n" + body + b"trailer << /Root 1 0 R >>\n"


def test_each_kind_of_file_becomes_text(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("One inter-\nnational page.", "Another."))
    (tmp_path / "b.html").write_text(
        "<title>t</title><style>p {}</style><script>x()</script><h1>Head</h1><nav>menu</nav>"
        "<p>A &lt;b&gt; <i>gr&uuml;n</i>.</p><ul><li>one</li></ul><p>x<pre>y\n  z</pre>"
    )
    (tmp_path / "c.HTM").write_bytes('<meta charset="latin1"><p>grün'.encode("latin1"))
    old = '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r"><p>да'
    (tmp_path / "d.html").write_bytes(old.encode("koi8-r"))
    (tmp_path / "e.html").write_bytes("<p>grün".encode("utf-16"))
    (tmp_path / "f.rst").write_text("Head\n====\n\n.. note:: kept\n")
    owned = StandardEncryption("", ownerPassword="secret", canCopy=0, strength=128)
    (tmp_path / "g.pdf").write_bytes(pdf("Open to all.", encrypt=owned))
    assert read(tmp_path) == {
        "a.pdf": "One international page.\n\nAnother.",
        "b.html": "Head\n\nmenu\n\nA <b> grün.\n\n  • one\n\nx\n\ny\n  z",
        "c.HTM": "grün",
        "d.html": "да",
        "e.html": "grün",
        "f.rst": "Head\n====\n\n.. note:: kept\n",
        "g.pdf": "Open to all.",
    }


def test_a_file_that_is_no_document_costs_one_row_and_says_why(tmp_path: Path) -> None:
    whole = pdf("text " * 50)
    locked = pdf("text", encrypt=StandardEncryption("secret", strength=128))
    files = {
        "cover.pdf": (pdf("Cover", "", ""), SCANNED.format(2, 3)),
        "cut.pdf": (whole[: len(whole) // 2], "the PDF is damaged, or none at all (Failed to load"),
        "empty.pdf": (b"", "the file is empty"),
        "empty.txt": (b"", "the file is empty"),
        "html.pdf": (b"<html>", "the PDF is damaged, or none at all (Failed to load document"),
        "locked.pdf": (locked, "the PDF is encrypted and needs a password; decrypt it"),
        "scan.pdf": (pdf("", ""), SCANNED.format(2, 2)),
        "big.txt": (b"x" * (1 << 20) + b"x", "the file is larger than input.max_document_mib 1"),
        "blank.html": (b"<script>x()</script>", "the text is empty"),
        "bytes.html": (b"<p>\xff", "the HTML is not UTF-8 and declares no other encoding; "),
        "lies.html": (
            b"<meta charset=utf-8>\xff",
            "the HTML is not utf-8, as it declares to be (byte 20); convert it to UTF-8",
        ),
    }
    for name, (data, _) in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "good.pdf").write_bytes(pdf("Text", "", "more"))
    found = read(tmp_path, max_document_mib=1)
    assert found.pop("good.pdf") == "Text\n\n\n\nmore"
    for name, (_, error) in files.items():
        assert found.pop(name).startswith(f"! {error}"), name
    assert not found


def test_a_file_that_hangs_its_reader_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(hostile_pdf(3_000_000))
    (tmp_path / "b.txt").write_text("next")
    assert read(tmp_path, extract_cpu_s=0.2) == {
        "a.pdf": "! the PDF takes more than 0.2 s of processor time to read; convert it to text, "
        "or raise input.extract_cpu_s",
        "b.txt": "next",
    }


def test_a_file_that_fills_the_memory_costs_itself_only() -> None:
    with Sandbox(cpu_s=60, memory_bytes=200 << 20) as sandbox:
        assert sandbox.text("PDF", pdf("before")) == "before"
        with pytest.raises(ValueError, match=r"^the PDF ended the process .* more than 200 MiB"):
            sandbox.text("PDF", hostile_pdf(500_000))
        assert sandbox.text("PDF", pdf("after")) == "after"


DRIVER = """
import sys
from arkv_sglang.batch.sandbox import Sandbox
sandbox = Sandbox(60)
print(sandbox.text("HTML", b"<p>up"), sandbox._child.pid, flush=True)
sys.stdin.read()
"""


def test_the_reader_ends_with_the_job_and_not_with_signals_to_its_group() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        process_group=0,
    ) as driver:
        assert driver.stdout is not None
        text, pid = driver.stdout.readline().split()
        assert text == b"up"
        reader = psutil.Process(int(pid))
        assert os.getpgid(reader.pid) != driver.pid
        driver.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([reader], timeout=60)
    assert not alive


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    lines = [
        json.dumps({"doc_id": n, "text": "x" * size}) for n, size in (("a", 9), ("b", 3 << 20))
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join([*lines, json.dumps({"doc_id": "c", "text": "t"})]))
    assert read(path, max_document_mib=1) == {
        "a": "x" * 9,
        "corpus.jsonl#2": "! the line is longer than input.max_document_mib 1 MiB",
        "c": "t",
    }
