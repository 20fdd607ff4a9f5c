"""What the documents show is run: every block of every page, in order, in a folder where its inputs exist
(see running.py).

A block that cannot run here says why in a mark (see blocks.py); its commands are parsed all the same."""

import re
import shutil
from collections import Counter

import pytest
from typer.main import get_command

from docs.blocks import KINDS, LANGUAGES, PAGES, ROOT, blocks, inline_commands
from docs.parsing import check_command, check_mention, find_command
from docs.running import PageRun
from surgicalmamba.cli.main import app

BLOCKS = {page: list(blocks(page)) for page in PAGES}
RUNNING = [page for page in PAGES if page.name != "getting-started.md" and BLOCKS[page]]


def name_of(page):
    return str(page.relative_to(ROOT))


def test_getting_started_leaves_a_dataset_a_trained_model_predictions_and_a_report(world):
    made_by_each_step = (
        "synthetic/phases.yaml",
        "prepared/dataset.json",
        "runs/tiny/best/model.safetensors",
        "predictions/run.json",
    )
    for made in (*made_by_each_step, "report/index.html", "video01.jsonl"):
        assert (world / made).is_file(), made


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_a_reader_can_work_through_the_page(page, world, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(world, folder, symlinks=True)
    with PageRun(folder) as run:
        for block in BLOCKS[page]:
            run.block(block)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_running_text_exist_with_the_options_named(page):
    for command in inline_commands(page):
        check_mention(command)


@pytest.mark.parametrize("block", [b for found in BLOCKS.values() for b in found], ids=lambda b: b.place)
def test_a_block_has_a_known_language_and_if_it_is_not_run_a_reason(block):
    assert block.language in LANGUAGES, (
        f"{block.place}: {block.language!r}; use one of {', '.join(LANGUAGES)}"
    )
    if block.kind is not None:
        assert block.kind in KINDS, (
            f"{block.place}: {block.kind!r} is no reason; reasons are {', '.join(KINDS)}"
        )
        assert block.reason, f"{block.place}: say after the comma what is needed"
    if block.kind == "elsewhere":
        named = re.findall(r"tests/[\w/.]+\.py", block.reason)
        assert named and all((ROOT / test).is_file() for test in named), (
            f"{block.place}: name the test that runs it"
        )


def test_most_commands_and_snippets_are_run():
    """Left out are downloads, cameras and the like; if those come to be the greater part, the documents are
    not tested any more."""
    pages = (page for page in PAGES if page.name != "datasets.md")  # nothing but downloads
    shown = [block for page in pages for block in BLOCKS[page] if block.language in ("sh", "python")]
    left_out = Counter(block.kind for block in shown if block.kind is not None)
    assert sum(left_out.values()) < len(shown) / 3, f"not run, of {len(shown)}: {dict(left_out)}"


def leaves(group, path=()):
    for name, command in group.commands.items():
        yield from (
            leaves(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]
        )


@pytest.mark.parametrize("path", [path for path, _ in leaves(get_command(app))], ids=" ".join)
def test_the_help_of_a_command_ends_with_an_example_that_parses(path):
    command, _ = find_command(list(path))
    examples = re.findall(r"^\s*Example: (surgicalmamba .*)$", command.help or "", re.MULTILINE)
    assert examples, f"the help of {' '.join(path)} has no example"
    for example in examples:
        assert example.split()[1 : 1 + len(path)] == list(path)
        check_command(example)
