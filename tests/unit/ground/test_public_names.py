import sds


def test_the_public_names_are_these():
    assert sds.__all__ == [
        "StreamingDataset",
        "StreamingDataLoader",
        "MultiStreamDataLoader",
        "StreamOptions",
        "interleave",
        "concatenate",
        "DevicePrefetcher",
        "BroadcastLoader",
        "World",
        "Batch",
        "SdsError",
        "errors",
        "plan",
        "transforms",
        "tensors",
        "observe",
        "testing",
        "__version__",
    ]
    assert dir(sds) == sorted(sds.__all__)


def test_the_ground_floor_resolves():
    from sds.errors import SdsError
    from sds.types import Batch
    from sds.world import World

    assert (sds.World, sds.Batch, sds.SdsError) == (World, Batch, SdsError)
    assert sds.errors.SdsError is SdsError
    assert sds.plan.__name__ == "sds.plan"


def test_the_public_names_of_the_plan_are_these():
    from sds import plan

    assert plan.__all__ == [
        "Permutation",
        "Plan",
        "steps",
        "lanes",
        "Bijection",
        "Order",
        "BlockPermutation",
        "Steps",
        "Lanes",
    ]
    assert all(hasattr(plan, name) for name in plan.__all__)


def test_the_public_names_of_the_tensors_are_these():
    from sds import tensors

    assert tensors.__all__ == [
        "TensorCache",
        "TensorCacheWriter",
        "LazyTensor",
        "TensorInfo",
        "realize",
        "import_comfyui",
    ]
    assert sds.tensors is tensors


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(sds, "nothing")
