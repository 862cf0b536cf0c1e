"""The saved models of training tests."""

from tests.training.conftest import saved as saved
