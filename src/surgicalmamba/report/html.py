"""The parts of a self-contained HTML page: its frame, tables, and figures that are also left as PNG and SVG files."""

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from surgicalmamba.data.store import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #e2e2e2; } th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
.settings, .note, figcaption { color: #444; font-size: .88rem; } .warning { color: #7a3300; font-size: .88rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
"""


def write_page(file: Path, title: str, body: Sequence[str]) -> Path:
    """Write a page with these parts, whole or not at all, and return its path."""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n<p class='note'>Research software, not a medical device.</p>\n</body></html>\n"
    )
    write_atomic(file, page.encode())
    return file


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def save_figure(figure: "Figure", folder: Path, name: str, caption: str) -> str:
    """Write a figure as PNG and SVG, and return it as HTML with the SVG inside."""
    import matplotlib as mpl

    png, svg_text = io.BytesIO(), io.StringIO()
    figure.savefig(png, dpi=150, format="png")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(svg_text, format="svg", metadata={"Date": None})
    svg = svg_text.getvalue()
    write_atomic(folder / f"{name}.png", png.getvalue())
    write_atomic(folder / f"{name}.svg", svg.encode())
    # Ids must differ between the figures of one page, or the clip paths of the first would cut all others.
    inline = svg[svg.index("<svg") :]
    inline = re.sub(r'\bid="', f'id="{name}-', inline)
    inline = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", inline)
    text = escape(caption)
    return f'<figure><div class="scroll" role="img" aria-label="{text}">{inline}</div><figcaption>{text}</figcaption></figure>'
