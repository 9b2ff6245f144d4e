// Gradient dtypes of a Megatron run: what gradients are accumulated in (precision.main_grads) and what they
// are reduced in (precision.grad_comm).
//
// Megatron Core 0.18 and earlier derive both from the mixed-precision flags: with --bf16 they are fp32 unless
// --grad-reduce-in-bf16 is given. From 0.19 on, Megatron-FSDP reads only megatron_fsdp_main_grads_dtype and
// megatron_fsdp_grad_comm_dtype, whose default `auto` is the parameters' dtype. A configuration does not
// contain its version. So an explicit dtype is carried over, `auto` follows the mixed-precision flags, and
// the warning `gradient_types` is printed where a version differs from that.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// `params` is the dtype of parameters in forward and backward (bf16 for FP8). `recipe` is the name of
// Megatron Bridge's mixed_precision recipe with underscores, or empty.
void ConvertGradients(v1::DType params, const std::string& recipe, SpecConversion* conversion);

}  // namespace fsdpd
