"""Images as a window of the network: for programs that have images and no stream of frames."""

from __future__ import annotations

from collections.abc import Sequence

from da3_ros.inference.preprocess import resize_for_network
from da3_ros.types import UPPER_BOUND, Image, View, Window


def window_of_images(
    images: Sequence[Image], process_res: int, method: str = UPPER_BOUND
) -> Window:
    """Returns a window of all images, in the given order; the first view is the reference.

    images: uint8 RGB [H, W, 3], all of one size. process_res: longest side in the network,
    pixels; the shortest one with the method `lower_bound_resize`. ``views[i].image`` is image i as
    the network sees it, [h, w, 3], and a prediction's depth [N, h, w] and K refer to its pixels.
    Intrinsics and stamps are unknown: the network
    estimates K. Raises ValueError for no image, for several sizes, and for an image that is too
    thin.
    """
    sizes = sorted({f"{image.shape[1]}x{image.shape[0]}" for image in images})
    if len(sizes) != 1:
        found = ", ".join(sizes) or "none"
        raise ValueError(f"a window needs images of one size, given: {found}; crop or resize them")
    resized = (resize_for_network(image, None, process_res, method)[0] for image in images)
    views = tuple(View(id=i, stamp_ns=i, image=image) for i, image in enumerate(resized))
    return Window(id=0, views=views, new=len(views))
