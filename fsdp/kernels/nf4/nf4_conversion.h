// Conversion of numbers to NF4 and back (nf4_format.h) on the device. Bits equal those of the CPU.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// REQUIRES: `elements` is a multiple of kNf4Block. `blocks` is aligned to 4 bytes.
void QuantizeNf4(const float* numbers, int64_t elements, uint8_t* blocks, Stream stream);
// `to`: of `type`, each number rounded once; aligned to 32 bytes.
void DequantizeNf4(const uint8_t* blocks, int64_t elements, void* to, DType type, Stream stream);

}  // namespace fsdpd::kernels
