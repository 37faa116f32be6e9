"""What is said about a file beside its text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.reading.notes import as_ranges


def test_neighbours_are_a_range() -> None:
    assert as_ranges([]) == ""
    assert as_ranges([3, 7, 8, 9, 11, 12]) == "3, 7-9, 11-12"


@given(st.sets(st.integers(1, 60)).map(sorted))
def test_ranges_name_the_pages_and_no_others(pages: list[int]) -> None:
    ranges = [[*map(int, part.split("-"))] for part in as_ranges(pages).split(", ") if part]
    assert [page for ends in ranges for page in range(ends[0], ends[-1] + 1)] == pages
    assert all(one[-1] + 1 < other[0] for one, other in pairwise(ranges))
