#include "fsdp/torch/deterministic.h"

#include <ATen/Context.h>
#include <c10/util/env.h>

#include "base/mutex.h"

namespace fsdpd {
namespace {

struct Switches {
  bool algorithms;
  bool warn_only;
  bool fill;
  bool cudnn;
  bool cudnn_benchmark;
  bool mkldnn;
};

// Error rather than warning: only then does LibTorch's flash attention use its deterministic variant. Filling
// uninitialized memory with NaN, which LibTorch also enables, is off: everything here is written before it is
// read.
constexpr Switches kOrdered = {true, false, false, true, false, true};

Switches Current() {
  const at::Context& context = at::globalContext();
  return {context.deterministicAlgorithms(),
          context.deterministicAlgorithmsWarnOnly(),
          context.deterministicFillUninitializedMemory(),
          context.deterministicCuDNN(),
          context.benchmarkCuDNN(),
          context.deterministicMkldnn()};
}

void Set(const Switches& to) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(to.algorithms, to.warn_only);
  context.setDeterministicFillUninitializedMemory(to.fill);
  context.setDeterministicCuDNN(to.cudnn);
  context.setBenchmarkCuDNN(to.cudnn_benchmark);
  context.setDeterministicMkldnn(to.mkldnn);
}

Mutex& HoldersMutex() {
  static auto* mutex = new Mutex;
  return *mutex;
}
int holders ABSL_GUARDED_BY(HoldersMutex()) = 0;
Switches before ABSL_GUARDED_BY(HoldersMutex()) = {};

}  // namespace

Deterministic::Deterministic() {
  const MutexLock lock(&HoldersMutex());
  if (holders++ > 0) return;
  c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  c10::utils::set_env("NCCL_NVLS_ENABLE", "0");
  before = Current();
  Set(kOrdered);
}

Deterministic::~Deterministic() {
  const MutexLock lock(&HoldersMutex());
  if (--holders == 0) Set(before);
}

}  // namespace fsdpd
