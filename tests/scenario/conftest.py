"""`pytest --rewrite` writes what the commands answer now into the scenario files."""


def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true", help="rewrite tests/scenario/*.txt")
