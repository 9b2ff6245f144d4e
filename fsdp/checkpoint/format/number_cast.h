// Number type conversion on the CPU, for checkpoint conversions and comparisons.
//
// Rounds to nearest even, like torch's `to()`. Pure functions.
#pragma once

#include <cstdint>

#include "fsdp/checkpoint/format/tensor_type.h"

namespace fsdpd {

// float32, bfloat16, float16, float64.
bool CanCast(const TensorType& type);

// Converts `count` numbers in place; the buffer must be large enough for the wider type. Returns the number
// of finite values that became infinite. REQUIRES: CanCast() of both.
int64_t CastNumbers(const TensorType& from, const TensorType& to, int64_t count, void* numbers);

// Integers, floats and bool; exact except for integers beyond 2^53.
bool CanCompare(const TensorType& type);
double NumberAt(const TensorType& type, const void* numbers, int64_t index);  // REQUIRES: CanCompare().

}  // namespace fsdpd
