// Shared parts of the cuBLASLt products: owning handles, matrix layouts and algorithm selection. Include it
// only from .cc files of CUDA builds.
//
// cuBLAS is column-major and the matrices of fsdpd are row-major, so their rows are its columns. result = x
// weight^T is therefore computed as result^T = weight x^T, with `weight` as the transposed operand.
#pragma once

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/Exceptions.h>
#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/check.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

inline cudaDataType_t CudaTypeOf(DType type) {
  switch (type) {
    case DType::kFp32:
      return CUDA_R_32F;
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kFp16:
      return CUDA_R_16F;
    case DType::kFp8:
      break;
  }
  FSDPD_CHECK(false);
}

// The largest power of two that divides all addresses, up to cuBLASLt's default assumption of 256.
inline uint32_t AlignmentOf(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 256;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return static_cast<uint32_t>(bits & ~(bits - 1));
}

struct LtDeleter {
  void operator()(cublasLtMatmulDesc_t of) const { cublasLtMatmulDescDestroy(of); }
  void operator()(cublasLtMatrixLayout_t of) const { cublasLtMatrixLayoutDestroy(of); }
  void operator()(cublasLtMatmulPreference_t of) const { cublasLtMatmulPreferenceDestroy(of); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, LtDeleter>;

// The descriptors and the algorithm for one shape.
struct LtProduct {
  Owned<cublasLtMatmulDesc_t> what;
  Owned<cublasLtMatrixLayout_t> weight, x, addend, result;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // Nullopt: cuBLASLt does not support the shape.

  template <typename Value>
  void Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(what.get(), attribute, &value, sizeof(value)));
  }
};

// Layout of a row-major [rows x width] matrix whose rows are `stride` elements apart.
inline Owned<cublasLtMatrixLayout_t> LayoutOf(cudaDataType_t type, int64_t rows, int64_t width,
                                              int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, width, rows, stride));
  return Owned<cublasLtMatrixLayout_t>(layout);
}

// A product that accumulates in fp32; the weight operand is transposed.
inline LtProduct ProductInFp32() {
  LtProduct product;
  cublasLtMatmulDesc_t what = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  product.what.reset(what);
  product.Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  return product;
}

// Marks a product as limited by the GPU's power cap; `outputs` is its output width, 0 for all other products.
struct LargeProduct {
  int64_t outputs = 0;
};

// The heuristic sorts algorithms by their time on a cool GPU. Large bf16 products run at the power cap, where
// the algorithm that uses the least energy is fastest: the 176x128 tile takes 1.5 to 4% less time than the
// first choice, unless it pads the outputs, which it would compute as well
// (docs/bench/2026-11-28-products-by-joules.md).
inline const cublasLtMatmulHeuristicResult_t& BestOf(const cublasLtMatmulHeuristicResult_t* offered,
                                                     int count, LargeProduct large) {
  constexpr int64_t kTileOutputs = 176;
  const int64_t covered = (large.outputs + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  if (large.outputs == 0 || covered - large.outputs > large.outputs / 100) return offered[0];
  for (int i = 0; i < count; ++i) {
    if (offered[i].state != CUBLAS_STATUS_SUCCESS) continue;
    uint32_t tile = 0;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&offered[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID,
                                                              &tile, sizeof(tile), nullptr));
    if (tile == CUBLASLT_MATMUL_TILE_176x128) return offered[i];
  }
  return offered[0];
}

// Call it last, after all descriptors and layouts are set.
inline void ChooseAlgorithm(uint32_t alignment, LargeProduct large, LtProduct* product) {
  cublasLtMatmulPreference_t preference = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const Owned<cublasLtMatmulPreference_t> owned(preference);
  const size_t workspace = at::cuda::getCUDABlasLtWorkspaceSize();
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
  for (const cublasLtMatmulPreferenceAttributes_t operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    TORCH_CUDABLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, operand, &alignment, sizeof(alignment)));
  }
  std::array<cublasLtMatmulHeuristicResult_t, 8> offered = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      at::cuda::getCurrentCUDABlasLtHandle(), product->what.get(), product->weight.get(), product->x.get(),
      product->addend.get(), product->result.get(), preference, static_cast<int>(offered.size()),
      offered.data(), &count);
  if (status == CUBLAS_STATUS_SUCCESS && count > 0) {
    product->algorithm = BestOf(offered.data(), count, large).algo;
  }
}

struct LtOperands {
  const void* weight;
  const void* x;
  const void* addend;  // Multiplied by `of_addend` (0 or 1).
  void* result;
  float of_addend = 1;
};

inline void Run(const LtProduct& product, const LtOperands& operands, cudaStream_t stream) {
  const float one = 1;
  TORCH_CUDABLAS_CHECK(
      cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), product.what.get(), &one, operands.weight,
                     product.weight.get(), operands.x, product.x.get(), &operands.of_addend, operands.addend,
                     product.addend.get(), operands.result, product.result.get(), &*product.algorithm,
                     at::cuda::getCUDABlasLtWorkspace(), at::cuda::getCUDABlasLtWorkspaceSize(), stream));
}

}  // namespace fsdpd::kernels
