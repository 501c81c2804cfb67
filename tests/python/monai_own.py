#!/usr/bin/env python3
"""MONAI's own tests of its GDSDataset, with forebay's in its place.

    python tests/python/monai_own.py CHECKOUT [cpu | cuda:0]

CHECKOUT has MONAI's `tests/data/test_gdsdataset.py` and `tests/test_utils.py`, with empty `tests/__init__.py` and
`tests/data/__init__.py`; MONAI itself is the installed one. Needs torch, monai, parameterized, nibabel and forebay; neither pytest,
cupy nor kvikio. Its files run as they are: the class is exchanged, its skips for CUDA, cupy and kvikio are gone, and its `device=0`
is the device that is named (the GPU without a name, if there is one). Exit code 0: exactly those fail that demand a defect.
"""

from __future__ import annotations

import sys
import unittest
from typing import Any

#: Asserts that demand a defect: the first epoch another type than later ones.
DEMANDS_A_DEFECT = {
    "test_dtype": "the first epoch has to give numpy's arrays, later ones torch's tensors",
    "test_metatensor": "the first epoch has to give a MetaTensor, later ones a pair of tensor and dict",
}
TESTS = 7


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.path.insert(0, sys.argv[1])
    import monai
    import monai.data
    import monai.utils
    import torch

    import forebay
    import forebay.monai

    device = sys.argv[2] if len(sys.argv) > 2 else "cuda:0" if torch.cuda.is_available() else "cpu"

    class GDSDataset(forebay.monai.GDSDataset):
        def __init__(self, *args: Any, **words: Any) -> None:
            super().__init__(*args, **{**words, "device": device})

    monai.data.GDSDataset = GDSDataset
    found = monai.utils.optional_import

    def optional_import(name: str, /, *args: Any, **words: Any) -> Any:
        return (None, True) if name in ("cupy", "kvikio.numpy") else found(name, *args, **words)

    monai.utils.optional_import = optional_import
    # Named at run time: MONAI's wheel does not have them.
    importing = __import__
    importing("tests.test_utils").test_utils.skip_if_no_cuda = lambda thing: thing
    file = importing("tests.data.test_gdsdataset").data.test_gdsdataset
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromModule(file))
    failed = {test.id().rpartition(".")[2] for test, _ in [*result.failures, *result.errors]}
    is_as_told = (result.testsRun, len(result.skipped), failed) == (TESTS, 0, set(DEMANDS_A_DEFECT))
    print(f"forebay {forebay.__version__}, monai {monai.__version__}, torch {torch.__version__}, {device}")
    print(f"ran {result.testsRun}, skipped {len(result.skipped)}, failed: {', '.join(sorted(failed)) or 'none'}")
    for test, why in DEMANDS_A_DEFECT.items():
        print(f"{test} demands a defect: {why}")
    print("as documented" if is_as_told else "NOT as documented")
    return 0 if is_as_told else 1


if __name__ == "__main__":
    sys.exit(main())
