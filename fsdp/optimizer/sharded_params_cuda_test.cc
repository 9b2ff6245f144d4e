// Initial values drawn by a GPU kernel equal the CPU's bit for bit, for shards of odd sizes and
// tensor-parallel shards, in fp32 and split fp32; frozen weights of a LoRA job in bf16 and fp16. Built with
// --config=cuda; skipped without a GPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>

#include "fsdp/model/unit/initial_values.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/nf4.h"

namespace fsdpd {
namespace {

// Tensor-parallel shards of rows and of columns, a vector of ones and one of zeros, a frozen matrix, and a
// matrix with more elements than one chunk of the CPU.
ModelFacts OddModel(int64_t tensor) {
  UnitFacts unit{"layer.0", UnitKind::kBlock, {}};
  unit.params.push_back({"rows", {77, 13}});
  unit.params.push_back({"norm", {7}});
  unit.params.push_back({"columns", {131, 21}});
  unit.params.push_back({"attention.bq", {5}});
  unit.params.push_back({"frozen", {3, 11}});
  unit.params.push_back({"large", {1033, 2051}});
  unit.params[0].partition = {0, tensor};
  unit.params[2].partition = {1, tensor};
  unit.params[4].trainable = false;
  return {{unit}};
}

struct Case {
  Mesh mesh;
  Strategy strategy;
  DType compute;  // bf16: main parameters in split fp32.
  bool offload = false;
  bool lora = false;
};

class CudaInitialValues : public ::testing::TestWithParam<Case> {};

TEST_P(CudaInitialValues, MatchTheCpu) {
  if (!CudaAvailable()) GTEST_SKIP() << "no GPU";
  ASSERT_TRUE(SetCudaDevice(0).ok());
  Spec spec;
  spec.device = DeviceKind::kCuda;
  spec.mesh = GetParam().mesh;
  spec.strategy = GetParam().strategy;
  spec.precision.compute = GetParam().compute;
  spec.offload_optimizer = GetParam().offload;
  if (GetParam().lora) spec.lora.rank = 1;  // Unless trainable, parameters are stored in compute type.
  const ModelFacts model = OddModel(spec.mesh.size(Axis::kTensor));
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  const InitialNumbers numbers = [&](int unit, int param) {
    const ParamFacts& of = model.units[unit].params[param];
    return NumbersOf(model.units[unit].name, of.name, DefaultInit(of), spec.seed);
  };
  std::atomic<int64_t> on_cpu = 0;
  const InitialValues initial = [&](int unit, int param, int64_t begin, int64_t elements) {
    on_cpu += elements;
    return DrawInitialValue(*numbers(unit, param), begin, elements);
  };
  Spec host = spec;
  host.device = DeviceKind::kCpu;
  for (int rank = 0; rank < spec.mesh.world(); ++rank) {
    const MeshPosition position{spec.mesh, rank};
    const auto want = ShardedParams::Make(host, layout, position, at::kCPU, initial);
    on_cpu = 0;
    const auto got = ShardedParams::Make(spec, layout, position, at::Device(at::kCUDA, 0), initial, numbers);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    EXPECT_EQ(on_cpu > 0, GetParam().offload && GetParam().compute == DType::kBf16);
    for (int b = 0; b < want->size(); ++b) {
      const BucketShard &cpu = want->bucket(b), &gpu = got->bucket(b);
      EXPECT_TRUE(gpu.stored().cpu().equal(cpu.stored())) << rank << " " << b;
      if (cpu.split.defined()) EXPECT_TRUE(gpu.split.low.cpu().equal(cpu.split.low)) << rank << " " << b;
    }
  }
}

// Codes and scales have the bits of the CPU, and so do the numbers that units read.
TEST(CudaNf4, MatchesTheCpu) {
  if (!CudaAvailable()) GTEST_SKIP() << "no GPU";
  ASSERT_TRUE(SetCudaDevice(0).ok());
  Spec spec;
  spec.device = DeviceKind::kCuda;
  spec.mesh = Mesh::DataParallel(1, 2);
  spec.precision.compute = DType::kBf16;
  spec.lora.rank = 1;
  UnitFacts unit{"layer.0", UnitKind::kBlock, {}};
  for (const int64_t rows : {3, 2050, 40000}) {
    unit.params.push_back({absl::StrCat("matrix", rows), {rows, 64}});
    unit.params.back().trainable = false;
    unit.params.back().nf4 = true;
  }
  const ModelFacts model{{unit}};
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  ASSERT_TRUE(layout.buckets.size() == 1 && layout.buckets[0].in_nf4);
  const InitialNumbers numbers = [&](int, int param) {
    return NumbersOf("layer.0", unit.params[param].name, DefaultInit(unit.params[param]), 1);
  };
  bool on_cpu = false;
  const InitialValues initial = [&](int u, int param, int64_t begin, int64_t elements) {
    on_cpu = true;
    return DrawInitialValue(*numbers(u, param), begin, elements);
  };
  for (int rank = 0; rank < 2; ++rank) {
    const MeshPosition position{spec.mesh, rank};
    const auto want = ShardedParams::Make(spec, layout, position, at::kCPU, initial);
    on_cpu = false;
    const auto got = ShardedParams::Make(spec, layout, position, at::Device(at::kCUDA, 0), initial, numbers);
    ASSERT_TRUE(want.ok() && got.ok() && !on_cpu);
    const at::Tensor &cpu = want->bucket(0).main, &gpu = got->bucket(0).main;
    EXPECT_TRUE(gpu.cpu().equal(cpu));
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor there = at::empty({layout.buckets[0].main_elements}, gpu.options().dtype(type)),
                       here = at::empty(there.sizes(), type);
      DequantizeNf4(gpu, there);
      DequantizeNf4(cpu, here);
      EXPECT_TRUE(there.cpu().equal(here)) << type;
    }
  }
}

const Mesh kSharded = Mesh::DataParallel(1, 3), kHybrid = Mesh::DataParallel(2, 3);

INSTANTIATE_TEST_SUITE_P(
    , CudaInitialValues,
    ::testing::Values(Case{Mesh::DataParallel(1, 1), Strategy::kNoShard, DType::kBf16},
                      Case{Mesh::DataParallel(1, 1), Strategy::kNoShard, DType::kFp32},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kBf16},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kFp32},
                      Case{kHybrid, Strategy::kOptimGradsParams, DType::kBf16},
                      Case{Mesh::DataParallel(1, 6).WithTensor(2), Strategy::kOptimGradsParams, DType::kBf16},
                      Case{Mesh::DataParallel(1, 6).WithTensor(2), Strategy::kOptimGradsParams, DType::kFp32},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kBf16, /*offload=*/true},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kFp32, /*offload=*/true},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kBf16, false, /*lora=*/true},
                      Case{kSharded, Strategy::kOptimGradsParams, DType::kFp16, false, /*lora=*/true}));

}  // namespace
}  // namespace fsdpd
