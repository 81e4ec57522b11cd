import pytest
from nest import Nest


@pytest.fixture(scope="session")
def nest(outlives_tests):
    nest = Nest()
    outlives_tests(nest.pid)
    yield nest
    nest.close()
