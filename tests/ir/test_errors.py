import pytest

from fusioncache.ir import Declined, Scope, is_declined


def test_a_handler_takes_what_is_declined_of_its_own_scope():
    declined = Declined("random numbers", Scope.GENERAL)
    declined.require(Scope.REGION, Scope.GENERAL)
    assert is_declined(declined, Scope.REGION, Scope.GENERAL)
    assert (str(declined), declined.reason) == ("random numbers", "random numbers")


def test_a_handler_lets_other_scopes_pass():
    declined = Declined("random numbers", Scope.GENERAL)
    with pytest.raises(Declined) as raised:
        try:
            raise declined
        except Declined as caught:
            caught.require(Scope.REGION)
    assert raised.value is declined
    assert declined.__context__ is None
    assert not is_declined(declined, Scope.REGION)
    assert not is_declined(ValueError("random numbers"), Scope.GENERAL)
