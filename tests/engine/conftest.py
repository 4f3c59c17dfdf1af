import pytest

from tests.transfer.units import Gate


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()
