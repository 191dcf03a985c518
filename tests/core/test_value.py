"""Values: copied, moved, saved and pickled whole, and never changed."""

import copy
import pickle

import pytest
import torch
from torch import nn

import matheron
from matheron import kernels as K
from matheron.core import REGISTRY, Parts, Value
from standard import KERNELS

every_kernel = pytest.mark.parametrize("name", KERNELS)
X = torch.tensor([[0.2], [0.9], [0.4]], dtype=torch.float64)


def tensors(value: Value) -> list[torch.Tensor]:
    return list(value.buffers())


@every_kernel
def test_all_that_a_kernel_is_lies_in_its_state_dict(name):
    kernel, d = KERNELS[name]
    assert not list(kernel.parameters())
    state = kernel.state_dict()
    assert len(state) == len(tensors(kernel)) and all(t.dtype == torch.float64 for t in state.values())
    x = X.expand(-1, d)
    other = copy.deepcopy(kernel)
    other.load_state_dict({key: 1.5 * t for key, t in state.items()})
    assert torch.equal(kernel(x), KERNELS[name][0](x))
    other.load_state_dict(state)
    assert torch.equal(other(x), kernel(x))


@every_kernel
def test_to_is_a_copy_and_the_value_stays_as_it_is(name):
    kernel, d = KERNELS[name]
    single = kernel.to(torch.float32)
    assert type(single) is type(kernel) and single is not kernel
    assert all(t.dtype == torch.float32 for t in tensors(single))
    assert all(t.dtype == torch.float64 for t in tensors(kernel))
    assert single.forward(X.expand(-1, d).float(), X.expand(-1, d).float()).dtype == torch.float32


@every_kernel
def test_owned_shares_no_memory_and_no_graph(name):
    kernel, _ = KERNELS[name]
    tied = kernel.mapped(lambda b: b.clone().requires_grad_())
    assert tied.requires_graph() and not kernel.requires_graph()
    own = tied.owned()
    assert not own.requires_graph()
    pointers = {t.data_ptr() for t in tensors(tied)}
    assert len(tensors(own)) == len(tensors(tied)) and not pointers & {t.data_ptr() for t in tensors(own)}
    for ours, theirs in zip(tensors(own), tensors(tied), strict=True):
        assert torch.equal(ours, theirs)


@every_kernel
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))], ids=["deepcopy", "pickle"])
def test_copies_are_equal_and_apart(name, copied):
    kernel, d = KERNELS[name]
    other, x = copied(kernel), X.expand(-1, d)
    assert torch.equal(other(x), kernel(x))
    assert not {t.data_ptr() for t in tensors(other)} & {t.data_ptr() for t in tensors(kernel)}


def test_mapped_reaches_nested_parts_and_leaves_fields():
    kernel = (2.0 * K.Matern(1.5, 0.5)).on([1]) + K.Polynomial(3, 0.5)
    doubled = kernel.mapped(lambda b: 2 * b)
    matern, polynomial = doubled.parts[0].kernel, doubled.parts[1]
    assert float(matern.outputscale) == 4 and float(matern.kernel.lengthscale) == 1 and float(polynomial.offset) == 1
    assert matern.kernel.nu == 1.5 and doubled.parts[0].dims == [1] and polynomial.degree == 3
    assert float(kernel.parts[0].kernel.outputscale) == 2  # the first is as it was


class Counted(Value):
    fields = ("label",)

    def __init__(self, numbers, counts, absent=None, label="x") -> None:
        super().__init__()
        self.register_buffer("numbers", torch.as_tensor(numbers))
        self.register_buffer("counts", torch.as_tensor(counts))
        self.register_buffer("absent", absent)
        self.label = label


def test_integers_keep_their_dtype_and_what_is_absent_stays_absent():
    value = Counted([1.0, 2.0], [1, 2], label="y").to(dtype=torch.float64)
    assert value.numbers.dtype == torch.float64 and value.counts.dtype == torch.int64
    assert value.absent is None and value.label == "y"
    assert value.to("cpu").numbers.dtype == torch.float64
    assert value.to(torch.zeros(1, dtype=torch.float32)).numbers.dtype == torch.float32


def test_a_parent_module_moves_a_value_in_place():
    parent = nn.ModuleDict({"kernel": K.RBF(0.5) + K.Linear()})
    parent.float()
    assert all(t.dtype == torch.float32 for t in parent["kernel"].buffers())


def test_loading_a_state_dict_does_not_write_into_memory_that_a_copy_shares():
    kernel = K.RBF(0.5)
    shared = kernel.to(torch.float64)
    assert shared.lengthscale.data_ptr() == kernel.lengthscale.data_ptr()
    shared.load_state_dict({"lengthscale": torch.tensor(2.0, dtype=torch.float64)})
    assert float(kernel.lengthscale) == 0.5 and float(shared.lengthscale) == 2.0


def test_the_registry_holds_concrete_values_by_name_and_no_later_class_takes_a_place():
    assert REGISTRY["RBF"] is K.RBF and REGISTRY["Parts"] is Parts and REGISTRY["Counted"] is Counted
    assert not any(name.startswith("_") for name in REGISTRY)
    assert "CallableMean" not in REGISTRY  # a file holds no code

    type("RBF", (Value,), {})
    assert REGISTRY["RBF"] is K.RBF
    REGISTRY.pop("Counted")


def test_parts_are_in_order():
    parts = Parts([K.RBF(), K.Linear(), K.Constant()])
    assert len(parts) == 3 and [type(p) for p in parts] == [K.RBF, K.Linear, K.Constant]
    assert parts[1] is list(parts)[1] and parts[-1] is list(parts)[2]


PATHS = matheron.draw(matheron.ExactGP(K.RBF(0.5), [[0.0], [1.0]], [0.0, 1.0], 0.1), 3, num_features=8, seed=0)


def test_single_and_double_precision_are_copies():
    before = PATHS(X)
    for moved in (PATHS.float(), PATHS.to(torch.float32), PATHS.type(torch.float32)):
        assert moved is not PATHS and moved.dtype == torch.float32
    assert PATHS.float().double().dtype == torch.float64 and PATHS.cpu() is not PATHS
    assert PATHS.dtype == torch.float64 and torch.equal(PATHS(X), before)


@pytest.mark.parametrize(
    "move",
    [lambda p: p.half(), lambda p: p.bfloat16(), lambda p: p.to(torch.long), lambda p: p.type("torch.int32")],
    ids=["half", "bfloat16", "long", "int32"],
)
def test_other_types_of_number_are_refused(move):
    with pytest.raises(TypeError, match=r"Paths: expected torch\.float32 or torch\.float64, got"):
        move(PATHS)


@pytest.mark.parametrize(
    "write",
    [
        lambda p: setattr(p, "prior", None),
        lambda p: setattr(p.prior, "w", torch.zeros(1)),
        lambda p: setattr(p.update.kernel, "lengthscale", torch.zeros(1)),
        lambda p: setattr(p, "note", "mine"),
        lambda p: delattr(p, "prior"),
        lambda p: p.register_buffer("more", torch.zeros(1)),
        lambda p: p.add_module("more", K.RBF()),
    ],
)
def test_a_value_is_never_changed(write):
    before = PATHS(X)
    with pytest.raises(AttributeError, match=r"expected no change, a .* is a value"):
        write(PATHS)
    assert torch.equal(PATHS(X), before)


def test_parents_modes_and_states_may_still_change_a_value():
    paths = copy.deepcopy(PATHS)
    nn.ModuleList([paths]).train(False)
    paths.load_state_dict(
        matheron.draw(
            matheron.ExactGP(K.RBF(0.5), [[0.0], [1.0]], [2.0, 1.0], 0.1), 3, num_features=8, seed=1
        ).state_dict()
    )
    assert not torch.equal(paths(X), PATHS(X))
    with pytest.raises(AttributeError, match="expected no change"):
        setattr(paths, "prior", None)  # noqa: B010


class Assigned(K.RBF):
    """A user's class, whose attributes are numbers, or nothing, before they are tensors."""

    power: float | torch.Tensor = 1.0

    def __init__(self) -> None:
        super().__init__(0.5)
        self.rate, self.shift, self.power = 2.0, None, torch.ones(())
        self.rate, self.shift = torch.as_tensor(self.rate), torch.zeros(2)

    def remember(self, x: torch.Tensor) -> None:
        self._seen = x


def test_tensors_that_a_user_s_class_assigns_are_buffers_and_what_it_remembers_later_is_none():
    value = Assigned()
    assert set(value.state_dict()) == {"lengthscale", "rate", "shift"}
    assert value.double().state_dict()["rate"].dtype == torch.float64 and value.power == 1.0
    value.remember(X)
    assert value._seen is X and "_seen" not in value.state_dict()


@pytest.mark.parametrize("kind", [matheron.Outputs, matheron.Ensemble, matheron.Batch])
def test_snapshots_are_values(kind):
    gp = matheron.ExactGP(K.RBF(0.5), [[0.0], [1.0]], [0.0, 1.0], 0.1)
    sparse = matheron.SparseGP(K.RBF(0.5), [[0.2]], [0.0], tasks=None)
    assert torch.equal(gp.centres, gp.train_inputs) and torch.equal(sparse.centres, sparse.inducing_points)
    joined = kind([gp, sparse])
    for snapshot in (gp, sparse, joined):
        single = snapshot.to(torch.float32)
        assert {t.dtype for t in tensors(single)} == {torch.float32} and {t.dtype for t in tensors(snapshot)} == {
            torch.float64
        }
        with pytest.raises(AttributeError, match="expected no change"):
            snapshot.kernel = K.Linear()
    moved = gp.replaced(kernel=K.Linear())
    assert type(moved.kernel) is K.Linear and type(gp.kernel) is K.RBF


def test_a_part_that_is_no_snapshot_is_refused():
    with pytest.raises(TypeError, match="Outputs: expected snapshots such as ExactGP, got RBF"):
        matheron.Outputs([K.RBF()])  # type: ignore[list-item]


def test_the_members_of_a_value_are_listed_without_those_of_torch():
    listed = [name for name in dir(PATHS) if not name.startswith("_")]
    assert {"condition_on", "value_and_grad", "mean", "prior", "update", "save", "to"} <= set(listed)
    assert not {"register_forward_hook", "zero_grad", "training"} & set(listed)


def test_what_the_library_calls_itself_is_not_listed_among_what_users_call():
    gp = matheron.ExactGP(K.RBF(0.5), [[0.0], [1.0]], [0.0, 1.0], 0.1)
    batch = matheron.draw(matheron.Batch([gp, gp]), 2, num_features=8)
    for value in (PATHS, gp, gp.kernel, batch, matheron.draw(matheron.Outputs([gp, gp]), 2, num_features=8)):
        listed = set(dir(value))
        assert not listed & {"mapped", "owned", "restore", "check", "read_fields", "requires_graph", "shapes", "fields"}
        assert not listed & {"record", "in_model_units", "inner", "register_buffer", "instead_of_saving", "saveable"}
        assert all(hasattr(value, name) for name in listed)


def test_minima_and_diagnoses_say_what_they_are():
    minima = matheron.minimize(PATHS, [[0.0], [1.0]], mesh_size=32, num_starts=2, seed=0)
    assert repr(minima).startswith("Minima(3 points in 1 dimension, values ") and "evaluations)" in repr(minima)
    assert minima._repr_html_().count("<tr>") == 4
    gp = matheron.ExactGP(K.RBF(0.5), [[0.0], [1.0]], [0.0, 1.0], 0.1)
    diagnosis = matheron.diagnose(PATHS, gp, X)
    assert repr(diagnosis) == str(diagnosis) and "2-Wasserstein" in repr(diagnosis)
    assert "2-Wasserstein" in diagnosis._repr_html_()
