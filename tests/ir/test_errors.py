import pytest

from fusioncache.ir import Declined, Scope, is_declined


def test_a_handler_takes_what_is_declined_of_its_own_scope_alone():
    declined = Declined("random numbers", Scope.GENERAL)
    declined.require(Scope.REGION, Scope.GENERAL)
    with pytest.raises(Declined) as raised:
        declined.require(Scope.REGION)
    assert raised.value is declined and str(declined) == declined.reason == "random numbers"
    assert is_declined(declined, Scope.REGION, Scope.GENERAL) and not is_declined(declined, Scope.REGION)
    assert not is_declined(ValueError("random numbers"), Scope.GENERAL)
