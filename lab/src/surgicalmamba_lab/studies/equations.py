"""The appendix's identities by numbers: one page, built from the package's own functions."""

from pathlib import Path

from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.report.figures import save_figure
from surgicalmamba_lab.studies.equations_intensity import cost_section, selectivity_section
from surgicalmamba_lab.studies.equations_page import Section
from surgicalmamba_lab.studies.equations_rotation import collision_section, kernel_section

INTRODUCTION = """# The paper's identities, by numbers

This page is built by

```
surgicalmamba study equations --docs docs/equations.md
```

and a test builds it anew and compares. Every number comes from the functions that the model itself uses (`core/ssd.py`,
`core/rotation.py`, `core/ssd.py`, `insight/regime.py`), in float64 on small sequences with a fixed seed. Nothing is trained here.
Where the paper states an identity, the numbers must agree to rounding; where it approximates, the page says how far off the
approximation is. The [map of equations](paper-map.md) names the function and the test of each.

```python
from surgicalmamba_lab.studies.equations import sections

for section in sections():
    for check in section.checks:
        print(f"{section.title}: {check.claim}: {check.told}")
```
"""


def sections() -> list[Section]:
    """Everything computed, nothing drawn yet."""
    return [kernel_section(), collision_section(), selectivity_section(), cost_section()]


def page_text(parts: list[Section]) -> str:
    """The page as Markdown; its pictures lie in `images/` beside it."""
    return "\n".join([INTRODUCTION, *(part.markdown("images") for part in parts)])


def write_page(file: Path, parts: list[Section]) -> None:
    """The pictures as PNG and SVG, then the page."""
    images = file.parent / "images"
    make_folder(images)
    for part in parts:
        save_figure(part.draw(), images, part.figure_name)
    write_atomic(file, page_text(parts).encode())
