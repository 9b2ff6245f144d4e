#include "fsdp/kernels/scaled_product.h"

#include <map>
#include <tuple>

#include "fsdp/kernels/lt_product.h"

namespace fsdpd::kernels {
namespace {

LtProduct ProductOf(const ScaledProductArgs& args, uint32_t alignment) {
  LtProduct product = ProductInFp32();
  product.Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  product.Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  product.Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  // The heuristic only checks that the pointers are set.
  product.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.weight_scales);
  product.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.x_scales);
  const cudaDataType_t result = CudaTypeOf(args.type);
  product.weight = LayoutOf(CUDA_R_8F_E4M3, args.outputs, args.inputs, args.inputs);
  product.x = LayoutOf(CUDA_R_8F_E4M3, args.rows, args.inputs, args.inputs);
  product.addend = LayoutOf(result, args.rows, args.outputs, args.stride);
  product.result = LayoutOf(result, args.rows, args.outputs, args.stride);
  ChooseAlgorithm(alignment, LargeProduct(), &product);
  return product;
}

}  // namespace

bool ScaledProduct(const ScaledProductArgs& args, Stream stream) {
  if (args.rows == 0 || args.outputs == 0) return true;
  const uint32_t alignment = AlignmentOf({args.x, args.weight, args.addend, args.result});
  // Bounded by the number of product shapes in the model's layers, in three directions.
  thread_local std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, DType, uint32_t>, LtProduct> products;
  const auto key = std::make_tuple(args.rows, args.outputs, args.inputs, args.stride, args.type, alignment);
  auto found = products.find(key);
  if (found == products.end()) found = products.emplace(key, ProductOf(args, alignment)).first;
  const LtProduct& product = found->second;
  if (!product.algorithm.has_value()) return false;
  product.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.weight_scales);
  product.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.x_scales);
  const bool adds = args.addend != nullptr;
  Run(product, {args.weight, args.x, adds ? args.addend : args.result, args.result, adds ? 1.0f : 0.0f},
      stream);
  return true;
}

}  // namespace fsdpd::kernels
