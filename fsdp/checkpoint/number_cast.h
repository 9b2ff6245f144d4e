// Numbers of one type as numbers of another, on the CPU: what a conversion between checkpoints rounds, and as
// what two checkpoints are compared.
//
// Rounding is to the nearest, ties to even, as torch's `to()` has it. Pure functions.
#pragma once

#include <cstdint>

#include "fsdp/checkpoint/tensor_type.h"

namespace fsdpd {

// float32, bfloat16, float16, float64.
bool CanCast(const TensorType& type);

// `count` numbers at `numbers`, in place: there must be room for the wider of both. Returns how many finite
// ones became infinite. REQUIRES: CanCast() of both.
int64_t CastNumbers(const TensorType& from, const TensorType& to, int64_t count, void* numbers);

// Integers, floats and bool; exact but for integers beyond 2^53.
bool CanCompare(const TensorType& type);
double NumberAt(const TensorType& type, const void* numbers, int64_t index);  // REQUIRES: CanCompare().

}  // namespace fsdpd
