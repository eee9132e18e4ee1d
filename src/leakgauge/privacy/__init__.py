"""What differential privacy a training gives, in ε and in words. Counting needs the extra `dp` (Opacus)."""

from leakgauge.privacy.accounting import ACCOUNTANTS, Ledger, Release, Unit, epsilon_of, multiplier_for
from leakgauge.privacy.guarantee import Guarantee, Mechanism, NoGuarantee, guarantee, mechanism
from leakgauge.privacy.rero import sentence, success_bound
from leakgauge.privacy.tested import Claim, NoisePath, PrivacyTest, check_claim

__all__ = [
    "ACCOUNTANTS",
    "Claim",
    "Guarantee",
    "Ledger",
    "Mechanism",
    "NoGuarantee",
    "NoisePath",
    "PrivacyTest",
    "Release",
    "Unit",
    "check_claim",
    "epsilon_of",
    "guarantee",
    "mechanism",
    "multiplier_for",
    "sentence",
    "success_bound",
]
