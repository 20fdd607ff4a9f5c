"""Files for GitHub, pre-commit and citations: they parse, and agree with the package and the Makefile."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from surgicalmamba.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github/workflows/ci.yml"
FORMS = [form for form in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) if form.name != "config.yml"]
PAGES = [ROOT / "SECURITY.md", ROOT / ".github/pull_request_template.md"]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def jobs():
    return read(WORKFLOW)["jobs"]


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_a_file_for_github_is_a_yaml_mapping(path):
    assert isinstance(read(path), dict)


def test_the_workflow_runs_the_two_commands_of_the_readme_on_the_oldest_and_newest_python(jobs, project):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(make \w+) ", readme, re.MULTILINE)
    assert commands(jobs["test"]) == shown == ["make demo", "make test"]
    minors = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == [minors[0], minors[-1]]
    assert project["requires-python"] == f">={minors[0]}"
    assert f"Python {minors[0]} to {minors[-1]}" in readme


def test_the_workflow_builds_the_documentation(jobs):
    assert commands(jobs["docs"]) == ["make docs"]


def test_every_make_target_of_the_workflow_exists(jobs):
    asked = {word for job in jobs.values() for command in commands(job) for word in command.split()[1:]}
    assert asked <= targets()


def test_the_workflow_may_only_read_the_repository():
    assert read(WORKFLOW)["permissions"] == {"contents": "read"}


def test_hooks_run_tools_of_the_environment_that_make_creates_on_files_that_exist(project):
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    tools = set()
    for hook in local["hooks"]:
        program, *arguments = hook["entry"].split()
        folder, _, tool = program.rpartition("/")
        assert (folder, hook["language"]) == (".venv/bin", "system")
        assert all((ROOT / argument).exists() for argument in arguments if argument.startswith("tests"))
        tools.add(tool)
    assert tools == {"ruff", "mypy", "pytest"}
    assert tools <= {re.match(r"[\w-]+", wish)[0] for wish in project["optional-dependencies"]["test"]}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_has_what_github_requires(form):
    content = read(form)
    assert content["name"] and content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert fields, "a form needs at least one field that can be filled in"
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names)
    for field in fields:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]
        options = field["attributes"].get("options", [])
        assert all(isinstance(option, str if field["type"] == "dropdown" else dict) for option in options)


def test_the_forms_are_for_bugs_features_and_results():
    assert [form.stem for form in FORMS] == ["bug", "feature", "results"]


def test_the_citation_names_the_version_the_licence_and_the_paper(project):
    citation = read(ROOT / "CITATION.cff")
    required = {"cff-version", "message", "title", "authors"}
    assert required <= citation.keys()
    assert str(citation["version"]) == __version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    paper = citation["preferred-citation"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    names = [f"{author['given-names'][0]}. {author['family-names']}" for author in paper["authors"]]
    assert f'{" and ".join(names)}, "{paper["title"]}"' in readme


def test_the_paper_is_cited_with_the_title_and_authors_it_has(paper_source):
    paper = read(ROOT / "CITATION.cff")["preferred-citation"]
    source = " ".join(paper_source.replace("\\\\\n", " ").split())
    assert f"\\title{{{paper['title']}}}" in source
    for author in paper["authors"]:
        assert f"{author['given-names']} {author['family-names']}" in source


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_links_to_or_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:docs|src|tests|lab)/[\w./-]+|[A-Z]+\.(?:md|cff))`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"
    for target in re.findall(r"`make (\w+)`", text):
        assert target in targets(), f"{page.name} names make {target}"


def test_nothing_that_is_built_or_recorded_by_a_run_is_committed():
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    assert listed.stdout == ""
