"""What differential privacy a training gives, in ε and in words. Counting needs the extra `dp` (Opacus)."""

from leakgauge.privacy.accounting import ACCOUNTANTS, Release, epsilon_of, multiplier_for
from leakgauge.privacy.guarantee import Guarantee, Mechanism, NoGuarantee, Unit, guarantee, mechanism
from leakgauge.privacy.ledger import Ledger
from leakgauge.privacy.rero import sentence, success_bound
from leakgauge.privacy.validate import validate_for_dp

__all__ = [
    "ACCOUNTANTS",
    "Guarantee",
    "Ledger",
    "Mechanism",
    "NoGuarantee",
    "Release",
    "Unit",
    "epsilon_of",
    "guarantee",
    "mechanism",
    "multiplier_for",
    "sentence",
    "success_bound",
    "validate_for_dp",
]
