// What a device and its links can do, in the few numbers that a step's prediction (simulate.h) needs.
//
// Rates are what a training step reaches, not what a data sheet says, except the peaks, which MFU divides by.
// "Per rank" link rates follow the convention of NCCL's bus bandwidth: bytes that one rank receives in a
// gather, or sends in a reduction, per second.
//
// Shipped profiles: cpu, h100, h200. Another device is a file with these keys (client/profile_file.h).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct DeviceProfile {
  std::string name;
  double fp32_matmul_flops = 0;  // Per second.
  double half_matmul_flops = 0;  // bf16 and fp16.
  double fp8_matmul_flops = 0;   // With a scale a row; 0: as half_matmul_flops.
  double fp32_peak_flops = 0;
  double half_peak_flops = 0;
  double attention_forward_flops = 0;    // To very many tokens; causal work counted half.
  double attention_backward_flops = 0;   // Of the 2.5 times as much work that backward does.
  double attention_overhead_tokens = 0;  // Attention to n tokens takes as long as n x (n + these) would.
  // Of attention in 16-bit types with train.deterministic, which takes other kernels.
  double deterministic_forward_slowdown = 1;
  double deterministic_backward_slowdown = 1;
  double memory_bytes_per_second = 0;  // Read and written together.
  // A shard group within one node; one that spans nodes, using all of a node's links at once; and the outer
  // axis, where each rank of a node has a group of its own at the same time.
  double node_gather_bytes_per_second = 0;
  double node_reduce_bytes_per_second = 0;
  double network_gather_bytes_per_second = 0;
  double network_reduce_bytes_per_second = 0;
  double outer_gather_bytes_per_second = 0;
  double outer_reduce_bytes_per_second = 0;
  double collective_latency_seconds = 0;  // Of each collective, whatever its size.
  // What native units, norm and updates take at least in a step that is launched as one graph: each kernel,
  // with its way from the one before, and each instruction beside them, for marks and words that show it.
  double kernel_seconds = 0;
  double instruction_seconds = 0;
  double compute_slowdown = 1;        // Of compute while any communication is under way.
  double communication_slowdown = 1;  // Of communication while compute is under way.
  double memory_bytes = 0;            // What a job may use; 0: not known.

  double matmul_flops(DType dtype) const {
    return dtype == DType::kFp32 ? fp32_matmul_flops : half_matmul_flops;
  }
  double fp8_flops() const { return fp8_matmul_flops > 0 ? fp8_matmul_flops : half_matmul_flops; }
  // By which attention to `tokens` takes longer than its FLOPs say: what kernels waste at the diagonal, and
  // before they are under way, weighs less in longer samples.
  double attention_factor(int64_t tokens) const {
    return 1 + attention_overhead_tokens / static_cast<double>(std::max<int64_t>(1, tokens));
  }
  // For MakePlan(); 0 when not known.
  int64_t budget_bytes() const { return static_cast<int64_t>(std::min(memory_bytes, 0x1p62)); }
  double peak_flops(DType dtype) const { return dtype == DType::kFp32 ? fp32_peak_flops : half_peak_flops; }
};

// A shipped one, by name; null when unknown.
const DeviceProfile* FindProfile(const std::string& name);
std::vector<std::string> ProfileNames();
const DeviceProfile& DefaultProfile(DeviceKind device);  // cpu; h200.

// The keys of a profile, in the struct's order.
struct ProfileField {
  const char* key;
  double DeviceProfile::*value;
  double least;         // Smallest legal value;
  bool least_is_legal;  // ... which itself is legal or not.
};
const std::vector<ProfileField>& ProfileFields();

// Every value that cannot be, by key.
Violations CheckProfile(const DeviceProfile& profile);

// A file that client/profile_file.h reads as this profile, to the last bit.
std::string ToJson(const DeviceProfile& profile);

}  // namespace fsdpd
