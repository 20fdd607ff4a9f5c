"""Options that turn the short runs of the test suite into long ones: pytest tests/chaos -s --kills 100
--malformed 10000"""

from served import checkpoint, model, pictures, server  # noqa: F401


def pytest_addoption(parser):
    parser.addoption(
        "--kills", type=int, metavar="N", help="Kill the server N times, with 4 rooms at 5 frames per second."
    )
    parser.addoption("--malformed", type=int, metavar="N", help="Send N malformed messages.")
