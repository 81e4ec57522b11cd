"""Operations that PyTorch refuses on a GPU: whether it does, what to write instead, and whether
they can be allowed."""

import operation_scripts
import pytest
from places import DEVICE, only_on_cuda

from lockstep._base.nondeterministic_operations import OPERATIONS, of_error

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(180)]
# On PyTorch's list, although recent versions may have a kernel for it.
MAY_RUN = {"cumsum"}


@only_on_cuda("the simulated device refuses no operation")
def test_each_operation_is_refused_and_has_a_substitute_and_can_be_allowed(crew):
    (found,) = crew(1, operation_scripts.try_all, "cuda", **DEVICE)
    others = {name: kernel for name, (kernel, _, _) in found.items() if not kernel or of_error(kernel) is None}
    assert others.keys() <= MAY_RUN, others
    wrong = {name: rest for name, (_, *rest) in found.items() if rest != [True, ""]}
    assert wrong == {}
    assert found.keys() == {operation.name for operation in OPERATIONS}
