"""Counters of large products from a few blocks, against counting every block."""

import numpy as np
import pytest

from sgemm_lab.ladder import ladder, own
from sgemm_lab.run import sample as sampling
from sgemm_lab.run.profile import accesses, profile_variant
from sgemm_lab.run.sample import kinds, sample

VARIANTS = [
    ladder[1](),
    ladder[1](COALESCED=0),
    ladder[1](BLOCK_X=8, BLOCK_Y=4),
    ladder[2](),
    ladder[2](TILE=8),
    ladder[2](TILE=16, LAYOUT=1),
    ladder[5](TILE=32, TM=8),
    ladder[6](TILE=32, TM=8),
    ladder[8](TILE=64),
    ladder[11](TILE=64),
]
SHAPES = [(129, 65, 97), (200, 136, 72), (77, 301, 33), (128, 128, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.key)
def test_a_few_blocks_count_what_all_blocks_count(variant, shape):
    found = sample(variant, *shape)
    assert found.counters == profile_variant(variant, *shape).counters
    assert 0 < found.worst < 1 and found.ran <= found.blocks


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 4096)])
@pytest.mark.parametrize("variant", [ladder[1](), ladder[2]()], ids=lambda variant: variant.key)
def test_large_products_are_counted_from_one_block(variant, shape):
    M, N, K = shape
    found = sample(variant, M, N, K)
    assert found.counters.ffma == M * N * K and found.ran == 1
    assert found.blocks == M // 32 * N // 32


def test_edges_and_corner_are_kinds_of_their_own():
    _, count = kinds(ladder[2](), 100, 70, 40)
    assert sorted(count.tolist()) == [1, 2, 3, 6] and count.sum() == 12


def test_a_wrong_block_shows_in_the_error(monkeypatch):
    right = sampling._error

    def spoilt(variant, number, A, B, C):
        C[0, 0] = np.nan
        return right(variant, number, A, B, C)

    monkeypatch.setattr(sampling, "_error", spoilt)
    assert sample(ladder[2](), 64, 64, 64).worst == np.inf


def test_an_empty_product_is_refused():
    with pytest.raises(ValueError, match="no blocks"):
        sample(ladder[2](), 0, 5, 5)


MINE = """
extern "C" __global__ void mine(const float* A, const float* B, float* C, size_t N, int M, int K) {
    extern __shared__ float sums[];
    size_t row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x * 8 + threadIdx.x;
    float& sum = sums[threadIdx.y * 8 + threadIdx.x];
    sum = 0;
    if (row >= M || col >= N) return;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = sum;
}"""
GIVEN = {"parameters": ("A", "B", "C", "N", "M", "K"), "dynamic_bytes": 256}


def test_a_kernel_with_parameters_of_its_own_and_dynamic_shared_memory_is_counted_alike():
    variant = own(MINE, "mine", (8, 8), (8, 8, 1), **GIVEN)
    assert sample(variant, 20, 21, 9).counters == profile_variant(variant, 20, 21, 9).counters
    assert accesses(variant, 20, 21, 9)[0].space == "shared"


def test_a_grid_of_ones_own_is_refused():
    variant = own(MINE, "mine", (8, 8), (8, 8, 1), blocks=lambda M, N: (9, 9), **GIVEN)
    with pytest.raises(ValueError, match="has a grid of its own"):
        sample(variant, 20, 21, 9)
