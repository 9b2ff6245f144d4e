#include "fsdp/kernels/add_product.h"

#include <map>
#include <tuple>

#include "fsdp/kernels/lt_product.h"

namespace fsdpd::kernels {
namespace {

constexpr double kLargeFlops = 4e11;  // The smallest product that was measured to be limited by power.

LtProduct ProductOf(const AddProductArgs& args, uint32_t alignment) {
  LtProduct product = ProductInFp32();
  const cudaDataType_t type = CudaTypeOf(args.type);
  product.weight = LayoutOf(type, args.outputs, args.inputs, args.inputs);
  product.x = LayoutOf(type, args.rows, args.inputs, args.inputs);
  product.addend = LayoutOf(type, args.rows, args.outputs, args.outputs);
  product.result = LayoutOf(type, args.rows, args.outputs, args.outputs);
  const double flops = 2.0 * static_cast<double>(args.rows) * static_cast<double>(args.outputs) *
                       static_cast<double>(args.inputs);
  const bool is_large = args.type == DType::kBf16 && flops >= kLargeFlops;
  ChooseAlgorithm(alignment, {is_large ? args.outputs : 0}, &product);
  return product;
}

}  // namespace

bool AddProduct(const AddProductArgs& args, Stream stream) {
  if (args.rows == 0 || args.outputs == 0) return true;
  const bool adds = args.residual != nullptr;
  const void* addend = adds ? args.residual : args.sum;
  const uint32_t alignment = AlignmentOf({addend, args.x, args.weight, args.sum});
  // Bounded by the number of product shapes in the model's layers and head.
  thread_local std::map<std::tuple<int64_t, int64_t, int64_t, DType, uint32_t>, LtProduct> products;
  const auto key = std::make_tuple(args.rows, args.outputs, args.inputs, args.type, alignment);
  auto found = products.find(key);
  if (found == products.end()) found = products.emplace(key, ProductOf(args, alignment)).first;
  const LtProduct& product = found->second;
  if (!product.algorithm.has_value()) return false;
  Run(product, {args.weight, args.x, addend, args.sum, adds ? 1.0f : 0.0f}, stream);
  return true;
}

}  // namespace fsdpd::kernels
