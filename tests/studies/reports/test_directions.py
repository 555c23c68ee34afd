from xlme_jax.studies.reports import directions


def test_the_direction_is_that_of_the_first_letter():
    assert directions.direction("12 שלום abc") == "rtl"
    assert directions.direction("abc שלום") == directions.direction("12") == "ltr"
    assert directions.is_right_to_left("abc ش") and not directions.is_right_to_left("abc 12")
