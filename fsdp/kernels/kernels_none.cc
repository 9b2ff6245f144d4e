// CHECK-failing launchers for builds without --config=cuda: all tensors are on the CPU, so none is ever
// called.
#include "base/check.h"
#include "fsdp/kernels/adamw_kernel.h"
#include "fsdp/kernels/adapted_swiglu.h"
#include "fsdp/kernels/add_product.h"
#include "fsdp/kernels/attention/join_attention.h"
#include "fsdp/kernels/attention/normed_heads.h"
#include "fsdp/kernels/attention/rotary.h"
#include "fsdp/kernels/cross_entropy.h"
#include "fsdp/kernels/experts/expert_rows.h"
#include "fsdp/kernels/experts/grouped_product.h"
#include "fsdp/kernels/experts/scaled_grouped_product.h"
#include "fsdp/kernels/experts/weighed_swiglu.h"
#include "fsdp/kernels/fill_normals.h"
#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/fp8_swiglu.h"
#include "fsdp/kernels/nf4/nf4_conversion.h"
#include "fsdp/kernels/rms_norm.h"
#include "fsdp/kernels/scaled_product.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/kernels/swiglu.h"

namespace fsdpd::kernels {

Stream CurrentStream(int) { FSDPD_CHECK(false); }
void SwigluForward(const void*, void*, int64_t, int64_t, DType, Stream) { FSDPD_CHECK(false); }
void SwigluBackward(void*, void*, int64_t, int64_t, DType, Stream) { FSDPD_CHECK(false); }
void AdaptedSwigluForward(const AdaptedSwigluArgs&, Stream) { FSDPD_CHECK(false); }
void AdaptedSwigluBackward(const AdaptedSwigluArgs&, Stream) { FSDPD_CHECK(false); }
bool TakesNormedHeads(const NormedHeadsArgs&) { FSDPD_CHECK(false); }
bool TakesNormedHeads(const NormedHeadsBackwardArgs&) { FSDPD_CHECK(false); }
void NormedHeadsForward(const NormedHeadsArgs&, Stream) { FSDPD_CHECK(false); }
void NormedHeadsBackward(const NormedHeadsBackwardArgs&, Stream) { FSDPD_CHECK(false); }
void Rotate(const RotaryArgs&, float, Stream) { FSDPD_CHECK(false); }
void CrossEntropyForward(const CrossEntropyArgs&, float*, Stream) { FSDPD_CHECK(false); }
void CrossEntropyBackward(const CrossEntropyArgs&, const float*, Stream) { FSDPD_CHECK(false); }
bool TakesRmsNorm(int64_t, DType, std::initializer_list<const void*>) { FSDPD_CHECK(false); }
bool TakesFp8RmsNorm(int64_t, std::initializer_list<const void*>) { FSDPD_CHECK(false); }
void RmsNormForward(const RmsNormArgs&, Stream) { FSDPD_CHECK(false); }
void RmsNormBackward(const RmsNormBackwardArgs&, Stream) { FSDPD_CHECK(false); }
void FillNormals(const FillNormalsArgs&, Stream) { FSDPD_CHECK(false); }
void QuantizeNf4(const float*, int64_t, uint8_t*, Stream) { FSDPD_CHECK(false); }
void DequantizeNf4(const uint8_t*, int64_t, void*, DType, Stream) { FSDPD_CHECK(false); }
void AdamWUpdate(const AdamWArgs&, Stream) { FSDPD_CHECK(false); }
bool AddProduct(const AddProductArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8Rows(const Fp8RowsArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8Weights(const Fp8WeightsArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8Transpose(const Fp8TransposeArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8Columns(const Fp8ColumnsArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8SwigluForward(const Fp8SwigluArgs&, Stream) { FSDPD_CHECK(false); }
void Fp8SwigluBackward(const Fp8SwigluBackwardArgs&, Stream) { FSDPD_CHECK(false); }
bool ScaledProduct(const ScaledProductArgs&, Stream) { FSDPD_CHECK(false); }
void ScaledGroupedRows(const ScaledRowsArgs&, Stream) { FSDPD_CHECK(false); }
void ScaledGroupedGrads(const ScaledGradsArgs&, Stream) { FSDPD_CHECK(false); }
void JoinAttention(const JoinAttentionArgs&, Stream) { FSDPD_CHECK(false); }
void SumParts(const SumPartsArgs&, Stream) { FSDPD_CHECK(false); }
void PlaceRows(const PlaceRowsArgs&, Stream) { FSDPD_CHECK(false); }
void GatherRows(const GatherRowsArgs&, Stream) { FSDPD_CHECK(false); }
void SumRows(const SumRowsArgs&, Stream) { FSDPD_CHECK(false); }
void WeighedSwigluForward(const WeighedSwigluArgs&, Stream) { FSDPD_CHECK(false); }
void WeighedSwigluBackward(const WeighedSwigluArgs&, Stream) { FSDPD_CHECK(false); }
void GroupedProduct(GroupedForm, const GroupedProductArgs&, Stream) { FSDPD_CHECK(false); }

}  // namespace fsdpd::kernels
