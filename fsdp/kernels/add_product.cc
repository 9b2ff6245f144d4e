#include "fsdp/kernels/add_product.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/Exceptions.h>
#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "base/check.h"

namespace fsdpd::kernels {
namespace {

cudaDataType_t CudaTypeOf(DType type) {
  switch (type) {
    case DType::kFp32:
      return CUDA_R_32F;
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kFp16:
      return CUDA_R_16F;
  }
  FSDPD_CHECK(false);
}

// The largest power of two that divides all, at most the 256 that cuBLASLt takes for granted.
uint32_t AlignmentOf(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 256;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return static_cast<uint32_t>(bits & ~(bits - 1));
}

struct Deleter {
  void operator()(cublasLtMatmulDesc_t of) const { cublasLtMatmulDescDestroy(of); }
  void operator()(cublasLtMatrixLayout_t of) const { cublasLtMatrixLayoutDestroy(of); }
  void operator()(cublasLtMatmulPreference_t of) const { cublasLtMatmulPreferenceDestroy(of); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter>;

Owned<cublasLtMatrixLayout_t> LayoutOf(DType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, CudaTypeOf(type), rows, columns, rows));
  return Owned<cublasLtMatrixLayout_t>(layout);
}

// cuBLAS reads column by column: our rows are its columns, so sum^T = weight x^T + residual^T, where `weight`
// is the one that it must transpose.
struct Product {
  Owned<cublasLtMatmulDesc_t> what;
  Owned<cublasLtMatrixLayout_t> weight, x, sum;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

Product ProductOf(const AddProductArgs& args, uint32_t alignment) {
  Product product;
  cublasLtMatmulDesc_t what = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  product.what.reset(what);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  TORCH_CUDABLAS_CHECK(
      cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  product.weight = LayoutOf(args.type, args.inputs, args.outputs);
  product.x = LayoutOf(args.type, args.inputs, args.rows);
  product.sum = LayoutOf(args.type, args.outputs, args.rows);

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
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      at::cuda::getCurrentCUDABlasLtHandle(), what, product.weight.get(), product.x.get(), product.sum.get(),
      product.sum.get(), preference, /*requestedAlgoCount=*/1, &found, &count);
  if (status == CUBLAS_STATUS_SUCCESS && count == 1) product.algorithm = found.algo;
  return product;
}

}  // namespace

bool AddProduct(const AddProductArgs& args, Stream stream) {
  if (args.rows == 0) return true;
  FSDPD_CHECK(args.sum != args.residual);
  const uint32_t alignment = AlignmentOf({args.residual, args.x, args.weight, args.sum});
  // As many as a model's blocks have shapes: two or three.
  thread_local std::map<std::tuple<int64_t, int64_t, int64_t, DType, uint32_t>, Product> products;
  const auto key = std::make_tuple(args.rows, args.outputs, args.inputs, args.type, alignment);
  auto found = products.find(key);
  if (found == products.end()) found = products.emplace(key, ProductOf(args, alignment)).first;
  const Product& product = found->second;
  if (!product.algorithm.has_value()) return false;
  const float one = 1;
  TORCH_CUDABLAS_CHECK(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), product.what.get(), &one,
                                      args.weight, product.weight.get(), args.x, product.x.get(), &one,
                                      args.residual, product.sum.get(), args.sum, product.sum.get(),
                                      &*product.algorithm, at::cuda::getCUDABlasLtWorkspace(),
                                      at::cuda::getCUDABlasLtWorkspaceSize(), stream));
  return true;
}

}  // namespace fsdpd::kernels
