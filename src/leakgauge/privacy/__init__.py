"""What differential privacy a training gives, in ε and in words. Counting needs the extra `dp` (Opacus)."""

from leakgauge.privacy.accounting import ACCOUNTANTS as ACCOUNTANTS
from leakgauge.privacy.accounting import Guarantee as Guarantee
from leakgauge.privacy.accounting import Ledger as Ledger
from leakgauge.privacy.accounting import Release as Release
from leakgauge.privacy.accounting import Unit as Unit
from leakgauge.privacy.accounting import epsilon_of as epsilon_of
from leakgauge.privacy.accounting import multiplier_for as multiplier_for
from leakgauge.privacy.accounting import sentence as sentence
from leakgauge.privacy.accounting import success_bound as success_bound
from leakgauge.privacy.guarantee import Mechanism as Mechanism
from leakgauge.privacy.guarantee import NoGuarantee as NoGuarantee
from leakgauge.privacy.guarantee import guarantee as guarantee
from leakgauge.privacy.guarantee import mechanism as mechanism
from leakgauge.privacy.tested import Claim as Claim
from leakgauge.privacy.tested import NoisePath as NoisePath
from leakgauge.privacy.tested import PrivacyTest as PrivacyTest
from leakgauge.privacy.tested import check_claim as check_claim
