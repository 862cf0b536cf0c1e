import uedp


def test_every_public_name_is_there():
    assert sorted(uedp._HOME) == sorted(uedp.__all__)
    for name in uedp.__all__:
        assert getattr(uedp, name) is not None
    assert not hasattr(uedp, "no_such_name")
