"""Plays that take minutes of two processors; the suite has twenty for everything."""

import os

import pytest

long_play = pytest.mark.skipif("TEST_LONG" not in os.environ, reason="long: TEST_LONG=1 plays it")
