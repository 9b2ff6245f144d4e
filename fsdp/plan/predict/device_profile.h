// Device profile: the rates of a device and its links that step-time prediction (simulate.h) needs.
//
// Rates are what a training step achieves, not data-sheet values, except the peaks, which MFU divides by.
// Link rates are per rank and follow NCCL's bus bandwidth: bytes per second that one rank receives in a
// gather, or sends in a reduction.
//
// Shipped profiles: cpu, h100, h200. Another device is a JSON file with these keys
// (client/commands/profile_file.h).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct DeviceProfile {
  std::string name;
  double fp32_matmul_flops = 0;  // Per second.
  double half_matmul_flops = 0;  // bf16 and fp16.
  double fp8_matmul_flops = 0;   // With one scale per row; 0: as half_matmul_flops.
  double fp32_peak_flops = 0;
  double half_peak_flops = 0;
  double attention_forward_flops = 0;   // For long sequences; causal attention counted as half.
  double attention_backward_flops = 0;  // Backward does 2.5x the work of forward.
  // Attention to n tokens takes the time of n x (n + this) token pairs.
  double attention_overhead_tokens = 0;
  // Slowdown of 16-bit attention with train.deterministic, which uses other kernels.
  double deterministic_forward_slowdown = 1;
  double deterministic_backward_slowdown = 1;
  double memory_bytes_per_second = 0;  // Reads plus writes.
  // Link rates of: a shard group within a node; a shard group that spans nodes and uses all links of a node;
  // the outer axis, where each rank of a node is in its own group at the same time.
  double node_gather_bytes_per_second = 0;
  double node_reduce_bytes_per_second = 0;
  double network_gather_bytes_per_second = 0;
  double network_reduce_bytes_per_second = 0;
  double outer_gather_bytes_per_second = 0;
  double outer_reduce_bytes_per_second = 0;
  double collective_latency_seconds = 0;  // Per collective, independent of its size.
  // Lower bounds for native units, norm and updates in a step launched as one CUDA graph: time per kernel,
  // including the gap before it, and additional time per instruction, for events and progress words.
  double kernel_seconds = 0;
  double instruction_seconds = 0;
  double compute_slowdown = 1;        // Compute slowdown while communication is in flight.
  double communication_slowdown = 1;  // Communication slowdown while compute runs.
  double memory_bytes = 0;            // Memory available to a job; 0: unknown.

  double matmul_flops(DType dtype) const {
    return dtype == DType::kFp32 ? fp32_matmul_flops : half_matmul_flops;
  }
  double fp8_flops() const { return fp8_matmul_flops > 0 ? fp8_matmul_flops : half_matmul_flops; }
  // Factor by which attention to `tokens` is slower than its FLOPs suggest: waste at the diagonal and startup
  // matter less for longer sequences.
  double attention_factor(int64_t tokens) const {
    return 1 + attention_overhead_tokens / static_cast<double>(std::max<int64_t>(1, tokens));
  }
  // For MakePlan(); 0 if unknown.
  int64_t budget_bytes() const { return static_cast<int64_t>(std::min(memory_bytes, 0x1p62)); }
  double peak_flops(DType dtype) const { return dtype == DType::kFp32 ? fp32_peak_flops : half_peak_flops; }
};

// A shipped profile by name; null if unknown.
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

// Violations for invalid values, by key.
Violations CheckProfile(const DeviceProfile& profile);

// JSON that client/commands/profile_file.h parses back to the same profile, bit for bit.
std::string ToJson(const DeviceProfile& profile);

}  // namespace fsdpd
