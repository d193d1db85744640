"""What is frozen is written once, and again wherever it may have changed."""

import copy
import json
from pathlib import Path

import cairn
import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


class Adapted(torch.nn.Module):
    """A frozen base of 2 MB, and an adapter beside it."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(700, 750).requires_grad_(False)
        self.adapter = torch.nn.Linear(700, 8)


def kept(folder):
    """The kept files of a checkpoint: their inodes."""
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    return [Path(folder, one["file"]).stat().st_ino for one in manifest.get("kept", [])]


class Run:
    def __init__(self, root):
        self.model = Adapted()
        self.checkpointer = cairn.Checkpointer(str(root), host_memory=32 << 20)
        self.tree = {}  # More than the model.
        self.step = 0

    def save(self, frozen=True):
        """Trains the adapter, and saves."""
        with torch.no_grad():
            self.model.adapter.weight += 1
        self.step += 1
        save = self.checkpointer.save(self.step, {"model": self.model, "step": self.step, **self.tree}, frozen=frozen)
        save.wait()
        (info,) = (one for one in self.checkpointer.checkpoints() if one.step == self.step)
        return kept(info.path), save.stats["bytes_written"]

    def expect_whole(self):
        """The newest checkpoint has the model as it is."""
        fresh = Adapted()
        for name, buffer in self.model.base.named_buffers():
            fresh.base.register_buffer(name, torch.ones_like(buffer))
        more = {name: copy.deepcopy(value) * 0 for name, value in self.tree.items()}
        with cairn.Checkpointer(self.checkpointer.root, read_only=True) as reader:
            reader.restore({"model": fresh, "step": 0, **more})
        for name, value in self.model.state_dict().items():
            assert torch.equal(fresh.state_dict()[name], value), name
        for name, value in self.tree.items():
            assert (more[name] == value).all(), name


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    yield run
    run.checkpointer.close()


@pytest.mark.parametrize("frozen", [True, "model/base*"])
def test_a_base_is_written_once(run, frozen):
    first, all_bytes = run.save(frozen)
    second, adapter_bytes = run.save(frozen)

    assert len(first) == 1 and second == first
    assert adapter_bytes < 50_000
    assert all_bytes > 2_000_000
    run.expect_whole()


def test_a_counted_write_is_seen(run):
    before, _ = run.save()
    with torch.no_grad():
        run.model.base.weight[3] = 7

    after, _ = run.save()

    assert after != before
    run.expect_whole()


@pytest.mark.parametrize("kind", ["step", "rows", "count", "part"])
def test_what_torch_does_not_count_is_seen(run, kind):
    """A fused step, of all or of some rows, another tensor with a count of its own, and a part of a larger memory."""
    weight = run.model.base.weight
    if kind == "part":
        flat = torch.zeros(750 * 700 + 1)
        weight.data = flat[1:].view(750, 700)  # Nobody counts what is written into the whole.
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    before, _ = run.save()
    versions = weight._version
    if kind == "step":
        weight.requires_grad_(True).sum().backward()
        optimizer.step()
        weight.requires_grad_(False)
    elif kind == "rows":
        rows = torch.nn.Parameter(weight[-10:])
        rows.sum().backward()
        torch.optim.SGD([rows], lr=0.1, fused=True).step()
    elif kind == "count":
        run.model.base.weight = torch.nn.Parameter(weight.data, requires_grad=False)
        while run.model.base.weight._version < versions:
            with torch.no_grad():
                run.model.base.weight += 1
    else:
        flat += 1
    assert run.model.base.weight._version == versions

    after, _ = run.save()

    assert after and after != before
    run.expect_whole()


def in_inference_mode(run):
    with torch.inference_mode():
        run.model.base.weight = torch.nn.Parameter(torch.ones(750, 700), requires_grad=False)

    def write():
        with torch.inference_mode():
            run.model.base.weight[-1, -1] += 1

    return True, write


def in_a_flat_buffer(run):
    flat = torch.zeros(750 * 700 + 1)
    run.model.base.weight.data = flat[1:].view(750, 700)
    return True, lambda: flat.numpy().put(1, 5)


def in_numpy(run):
    run.tree["table"] = numpy.zeros((600, 600))
    return "table", lambda: run.tree["table"].put(-1, 5)


@pytest.mark.parametrize("kind", [in_inference_mode, in_a_flat_buffer, in_numpy])
def test_where_nobody_counts_each_save_compares(run, kind):
    frozen, write = kind(run)
    before, all_bytes = run.save(frozen)
    same, adapter_bytes = run.save(frozen)
    assert len(before) == 1 and same == before
    assert all_bytes - adapter_bytes > 2_000_000

    write()

    after, _ = run.save(frozen)
    assert len(after) == 1 and after != before
    assert run.save(frozen)[0] == after
    run.expect_whole()


def test_a_copy_of_what_is_frozen_in_other_memory_is_linked_where_saves_compare(run):
    """Where they do not, it is written again: test_another_memory_is_seen."""
    in_inference_mode(run)
    before, _ = run.save()
    in_inference_mode(run)

    assert run.save()[0] == before


def test_names_are_compared_one_by_one(tmp_path):
    """Joined, the names of the two trees are one text."""
    first, second = torch.zeros(600, 600), torch.zeros(600, 600)
    with cairn.Checkpointer(str(tmp_path / "run"), host_memory=32 << 20) as checkpointer:
        checkpointer.save(1, {"xx": first, "x": second}, frozen="xx").wait()
        checkpointer.save(2, {"x": first, "xx": second}, frozen="xx").wait()
        first.data += 1
        checkpointer.save(3, {"x": first, "xx": second}, frozen="xx").wait()
        assert torch.equal(checkpointer.load()["x"], first)


def test_what_is_frozen_is_looked_up_at_each_save(run):
    """The names are remembered."""
    both, _ = run.save()
    run.model.base.bias.requires_grad_(True)
    run.model.base.bias.data += 1  # Not counted.
    without, _ = run.save()
    assert without != both
    run.expect_whole()
    run.model.base = torch.nn.Linear(700, 750)
    assert run.save()[0] == []


def test_other_names_in_the_tree_change_nothing(run):
    """An optimizer's state appears, a save has less, and a weight of the base is written."""
    before, _ = run.save()
    run.tree["loss"] = torch.ones(4)
    assert run.save()[0] == before
    run.checkpointer.save(100, {"adapter": run.model.adapter}, frozen=True).wait()
    run.step = 100
    assert run.save()[0] == before

    with torch.no_grad():
        run.model.base.weight += 1
    after, _ = run.save()
    assert after and after != before
    assert run.save()[0] == after
    run.expect_whole()


def test_copied_buffers_are_written_with_the_rest(run):
    run.model.base.register_buffer("mean", torch.zeros(700))
    before, _ = run.save("model/base*")

    after, written = run.save("model/base*")

    assert after == before
    assert written < 100_000
    run.expect_whole()


def test_what_batch_norm_collects_is_not_frozen(run):
    """Torch counts no write of forward's, and a state dict does not say what is a buffer."""
    run.model.base.norm = torch.nn.BatchNorm1d(700, momentum=0.5).requires_grad_(False)
    for step in range(3):
        run.model.base.norm(torch.rand(4, 700))
        run.checkpointer.save(step, {"model": run.model.state_dict()}, frozen="model/base*").wait()
        held = run.checkpointer.load(step)["model"]
        for name, value in run.model.base.norm.state_dict().items():
            assert torch.equal(held[f"base.norm.{name}"], value), name
    assert len({*map(str, (kept(one.path) for one in run.checkpointer.checkpoints()))}) == 1


def test_another_memory_is_seen(run):
    before, _ = run.save()
    run.model.base.weight.data = torch.full((750, 700), 2.0)

    after, _ = run.save()

    assert after != before
    run.expect_whole()


def test_another_model_in_the_same_memory_is_seen(run):
    """The allocator gives freed memory to the next that asks, and torch counts its writes anew."""
    before, _ = run.save()
    address = run.model.base.weight.data_ptr()
    run.checkpointer.drain()
    for _ in range(20):
        run.model = None
        run.model = Adapted()
        if run.model.base.weight.data_ptr() == address:
            break

    after, _ = run.save()

    assert after != before
    run.expect_whole()


def test_another_storage_at_the_same_address_is_seen(run):
    """As a `data` that was freed and another that got its memory: the parameter goes on counting as before."""
    memory = numpy.ones((750, 700), numpy.float32)
    run.model.base.weight.data = torch.from_numpy(memory)
    before, _ = run.save()
    run.model.base.weight.data = torch.from_numpy(memory).fill_(2)

    after, _ = run.save()

    assert after != before
    run.expect_whole()


def test_a_restore_is_seen(run):
    run.save()
    before, _ = run.save()
    run.checkpointer.restore({"model": run.model, "step": 0}, step=1)
    run.step = 10

    after, _ = run.save()

    assert after != before
    run.expect_whole()


def test_what_freezes_nothing_is_named(run, caplog):
    for step in (1, 2):
        run.checkpointer.save(step, run.model.state_dict(), frozen=True).wait()
    assert caplog.text.count("frozen=True froze nothing") == 1

    run.checkpointer.save(3, {"model": run.model}, frozen=["modell/*"]).wait()

    assert '"modell/*" matches nothing that this process saves' in caplog.text


class Stages(torch.nn.Module):
    """Its three layers are frozen and trained in turns; the base comes to the optimizer as a later group."""

    TRAINED = (["a"], ["b"], ["b", "base"], ["a"], ["a", "b", "base"])

    def __init__(self, stage):
        torch.manual_seed(1)
        super().__init__()
        self.a, self.b, self.base = torch.nn.Linear(8, 8), torch.nn.Linear(8, 600), torch.nn.Linear(600, 600)
        self.optimizer = torch.optim.AdamW([*self.a.parameters(), *self.b.parameters()], fused=True)
        for earlier in range(stage + 1):
            self.begin(earlier)

    def begin(self, stage):
        for name, layer in self.named_children():
            layer.requires_grad_(name in self.TRAINED[stage])
        if stage == 2:
            self.optimizer.add_param_group({"params": [*self.base.parameters()], "lr": 0.1})

    def go_through(self, stage):
        """Begins it, and makes two steps."""
        self.begin(stage)
        for step in range(2):
            self.base(self.b(self.a(torch.full((2, 8), float(stage + step))))).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def held(self):
        """Weights and moments, by name."""
        moments = self.optimizer.state_dict()["state"]
        found = {f"{at}/{key}": value for at, of in moments.items() for key, value in of.items()}
        return {name: tensor.clone() for name, tensor in {**self.state_dict(), **found}.items()}


@pytest.mark.parametrize("frozen", [False, True])
def test_moments_stay_while_parameters_are_frozen_and_trained_in_turns(tmp_path, frozen):
    """Some parameters have no state yet, some are frozen with theirs, and one group is added later."""

    def tree(model):
        return {"model": model, "optimizer": model.optimizer}

    whole, expected, kept_files = Stages(-1), [], []
    with cairn.Checkpointer(str(tmp_path / "run"), host_memory=32 << 20, keep_last=0) as checkpointer:
        checkpointer.protect(whole.optimizer)
        for stage in range(5):
            whole.go_through(stage)
            checkpointer.save(stage, tree(whole), frozen=frozen).wait()
            expected.append(whole.held())
            kept_files.append(kept(checkpointer.checkpoints()[-1].path))
    assert len(expected[0]) < len(expected[1]) < len(expected[2])
    assert [one != [] for one in kept_files] == [frozen, frozen, False, frozen, False]

    for stage in range(5):
        resumed = Stages(stage)
        with cairn.Checkpointer(str(tmp_path / "run"), read_only=True) as reader:
            reader.restore(tree(resumed), stage)
        assert same(resumed.held(), expected[stage]), stage
        for later in range(stage + 1, 5):
            resumed.go_through(later)
        assert same(resumed.held(), expected[-1]), stage


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], one) for name, one in expected.items())
