"""From construction to the first batch: at the start, or from a state at 90% of the epoch. Images are in the cache."""

import copy
import time

from timing import given, images_in, tell

SHARE = 0.9


def timed(args, make, loaded):
    """`loaded(loader, state)` is what goes on from a state; None begins at the start."""
    begun = time.perf_counter()
    loader = make(args)
    if args["state"] is not None:
        loaded(loader, args["state"])
    batch = next(iter(loader))
    took = time.perf_counter() - begun
    assert len(images_in(batch))
    return took


def state_at(args, make, state_of):
    """The state after 90% of the batches. The rest of the epoch is read too, so that all of it is in the cache."""
    loader = make({**args, "state": None})
    num = round(SHARE * args["num"] / args["batch"])
    state = None
    for k, _ in enumerate(loader, start=1):
        if k == num:
            state = copy.deepcopy(state_of(loader, k))
    assert state is not None, "the epoch is over"
    return state


def main(args):
    if args["contender"] == "sds":
        from ours import make
    elif args["contender"] == "litdata":
        from litdata_images import make
    else:
        from mosaic_images import make, streaming

        streaming.base.util.clean_stale_shared_memory()

    if args["contender"] == "mosaic":  # its state belongs to the dataset, which is told how much was handed out
        of, to = (
            (lambda each, k: each.dataset.state_dict(k * args["batch"], False)),
            (lambda each, s: each.dataset.load_state_dict(s)),
        )
    else:
        of, to = (lambda each, k: each.state_dict()), (lambda each, s: each.load_state_dict(s))  # noqa: ARG005
    if args["what"] == "state":
        return {"state": state_at(args, make, of)}
    return {"first_batch_s": timed(args, make, to)}


if __name__ == "__main__":
    args = given()
    tell(**main(args))
